// Empty on purpose: gpt149_light.h has already been included in front of everything.
