// Empty on purpose: gpt149_full.h has already included the tensor part of torch in front of everything.
