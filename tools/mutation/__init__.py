"""Mutation testing: templates and policy code are damaged, a statement at a time, and the tests must fail.

    python -m tools.mutation [--only FILE] [--sample N] [--seed S]

A *mutant* is a template or module with one small fault.  The tests that run the damaged place are run until a test
fails, which kills the mutant.  A surviving mutant shows that a test is missing or that code does nothing.  If neither
is the case, `explained.toml` says why.  A survivor without an explanation is a failure, and so is an explanation
without a survivor.  A test must fail twice to kill an explained mutant, so that a chance failure doesn't count as a
kill.  A test that fails only once is reported as flaky.

Mutants of Python code are tried with the tests that run their line, according to coverage.  Mutants of templates are
tried with packets alone, since a text that is compared with itself (examples/) doesn't show its effect.

docs/decisions/mutation.md compares it with cosmic-ray and mutmut.
"""
