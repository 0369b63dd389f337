// Forced in front of a student's file when the light path does not suffice: torch's real headers, then the same
// registration as everywhere.
#ifndef GPT149_FULL_H
#define GPT149_FULL_H

// Not by Python.h itself: a header that __has_include has missed, gcc leaves out later without an error.
#if __has_include(<frameobject.h>)
#include <torch/extension.h>
#define GPT149_HAS_PYBIND11
#else
// Without Python's development headers everything of torch but its Python bindings can still be had.
#include <torch/all.h>
#endif

#include "gpt149_abi.h"

#if !defined(GPT149_HAS_PYBIND11)
#include "gpt149_pybind.h"
#endif

#endif
