"""Submissions: any form in which a class arrives, converted to one small folder for each submission.

Forms: a source file; a folder that holds one, perhaps a level or two down; an archive of that; a folder or an archive
of any of these, one per student; a Gradescope export (`submission_metadata.yml` beside `submission_<id>` folders); a
Canvas export (`doejane_LATE_12345_67890_module-1.cpp`); a Moodle download (`Ada Lovelace_123_assignsubmission_file_`
folders); source files named for their students (`alice.cpp`).

A Python source is copied as one file with all that it imports from its own folders (`grader.core.pythontree`). Without
a source, the course's adapters stand for it.

Only the files that the assignment names are copied, under the assignment's names, into `<scratch>/<id>/` (folders 0700,
files 0600). No other file of a student ever reaches the disk, and a graded file cannot change any more. A submission
that cannot be read has an `error` in place of a `source`; the others go on. Submissions are copied one after the other,
so that memory and disk do not grow with the unpacked size of a class.

If there are several files, the one nearest to the top is chosen. In one folder the order is: the exact name; a name
that differs in capitals only; a numbered one (`module-2.cpp`, `module (2).cpp`). In a Canvas export the number counts
attempts, and the highest is chosen. Archives inside are opened only if no source lies beside or below them. Two equally
good files are an error that names both. Hidden files and leftovers of macOS and Windows are ignored.
"""

from grader.submission.finding import MAX_SOURCE_BYTES, Submission, companions_of, find, find_one

__all__ = ["MAX_SOURCE_BYTES", "Submission", "companions_of", "find", "find_one"]
