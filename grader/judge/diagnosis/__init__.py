"""Why a result is wrong: where, how much of it, and which mistake would give exactly that."""
