// The stand-in's own code, compiled as one file: six would each read the standard library's headers.
#include "plain_factories.cpp"
#include "plain_glue.cpp"
#include "plain_memory.cpp"
#include "plain_printing.cpp"
#include "plain_tensor.cpp"
#include "plain_types.cpp"
