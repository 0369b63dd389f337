// What lists and calls a student's functions, once for all files that are compiled with the stand-in.
#include "plain_torch.h"

#include "gpt149_glue.h"
