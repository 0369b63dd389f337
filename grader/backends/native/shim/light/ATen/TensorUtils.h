// Empty on purpose: torch's operator headers include this and use nothing of it, and it doubles what is compiled.
