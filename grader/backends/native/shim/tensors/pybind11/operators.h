// Empty on purpose: gpt149_pybind.h stands in for it.
