"""Whether the tests would notice: templates and policy code are damaged, one statement at a time.

    python -m tools.mutation [--only FILE] [--sample N] [--seed S] [--stage NAME] [--fast] [--log FILE] [--lived FILE]

A *mutant* is a template or module with one small fault.  The tests that run the damaged place are run until one fails:
then the mutant is killed.  One that lives shows a test that is missing, or code that does nothing; where it is neither,
`explained.toml` says why.  A mutant that lives unexplained is a failure, and so is an explanation of nothing: there a
test must fail twice, so that one that fails by chance doesn't look like a kill.  It is reported, as a flaky test.

Python's mutants are tried with the tests that run their line, by a record of coverage; those of templates with packets
alone, since a text that is compared with itself (examples/) says nothing about what it does.

Why not one of the tools that there are: mutmut damages functions only, cosmic-ray starts an interpreter for each
mutant, both know mutants by number, and neither reads templates.
"""
