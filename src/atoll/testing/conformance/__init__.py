"""Suites that hold any driver to `atoll.drivers.contracts`; shipped for those who write drivers.

A suite is a plain class of test methods. Subclass it, give it a driver, and let pytest find it:

    class TestMine(PrivateWorkspaceSuite):
        def driver(self):
            return MyWorkspace()

The suites use pytest's `tmp_path` and `monkeypatch`, but import nothing of pytest.
"""
