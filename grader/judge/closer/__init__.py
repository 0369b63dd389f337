"""What more can be found out of a part once it is known to be wrong or to crash: its lines, the sizes that matter, and
what checked builds see. None of it changes a verdict or points."""
