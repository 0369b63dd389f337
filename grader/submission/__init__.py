"""Submissions: from any of the forms in which a class arrives to one small folder for each submission.

Forms: a source file; a folder that holds one, perhaps a level or two down; an archive of that; a folder or an archive
of any of these, one per student; a Gradescope export (`submission_metadata.yml` beside `submission_<id>` folders); a
Canvas export (`doejane_LATE_12345_67890_module-1.cpp`); a Moodle download (`Ada Lovelace_123_assignsubmission_file_`
folders); source files named for their students (`alice.cpp`).

A Python source is copied as one file with all that it imports from its own folders (`grader.core.pythontree`); where no
source is found, the course's adapters stand for it.

Only the files that the assignment names are copied, under the assignment's names, into `<scratch>/<id>/` (folders
0700, files 0600): nothing else that a student packed ever touches the disk, and what is graded cannot change any more.
A submission that cannot be read has an `error` in place of a `source`; the others go on. One is copied after the
other, so that memory and disk do not grow with what a class might unpack to.

Which file is meant, when there are several: the one nearest to the top. Of several in one folder the exact name, then
one that differs in capitals only, then a numbered one (`module-2.cpp`, `module (2).cpp`); in a Canvas export, where
the number counts attempts, the highest. Archives inside are opened only where no source lies beside or below them.
Two that are equally good are an error that names both. Hidden files and what macOS and Windows leave behind are not
looked at.
"""

from grader.submission.finding import MAX_SOURCE_BYTES, Submission, companions_of, find, find_one

__all__ = ["MAX_SOURCE_BYTES", "Submission", "companions_of", "find", "find_one"]
