# ruff: noqa: ISC004 - the lines of a source file

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.change.dependency_files import is_lock, is_manifest
from atoll.engine.change.test_contents import count_tests
from atoll.engine.change.test_files import SuiteRole, find_role, is_test_path

TEST, SUPPORT, SETTINGS = SuiteRole.TEST, SuiteRole.SUPPORT, SuiteRole.SETTINGS


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("tests/test_app.py", TEST),
        ("tests/testmoney.py", TEST),
        ("app/order_test.py", TEST),
        ("tests/conftest.py", SUPPORT),
        ("tests/data/x.json", SUPPORT),
        ("src/a.test.tsx", TEST),
        ("src/__tests__/a.js", SUPPORT),
        ("src/__snapshots__/a.snap", TEST),
        ("pkg/a_test.go", TEST),
        ("pkg/testdata/x", SUPPORT),
        ("tests/cli.rs", TEST),
        ("src/test/java/a/OrderTest.java", TEST),
        ("src/test/resources/x.xml", SUPPORT),
        ("spec/a_spec.rb", TEST),
        ("tests/OrderTest.php", TEST),
        ("Shop.Tests/Orders.cs", SUPPORT),
        ("pytest.ini", SETTINGS),
        ("web/jest.config.js", SETTINGS),
        ("src/latest.java", None),
        ("src/contest.py", None),
        ("src/app.py", None),
        ("docs/testing.md", None),
        ("attest/x.py", None),
    ],
)
def test_role(path, role):
    assert find_role(path) is role
    assert is_test_path(path) == (role in {TEST, SUPPORT})


@pytest.mark.parametrize(
    ("path", "text", "names", "skips", "assertions"),
    [
        (
            "test_a.py",
            "class T:\n    def test_a(self):\n        self.assertEqual(1, 1)\n"
            "# def test_gone(): assert 1\n@pytest.mark.skip\nasync def test_b():\n    assert x\n",
            ["test_a", "test_b"], 1, 2,
        ),
        (
            "a.test.ts",
            "it('adds', () => { expect(1).toBe(1) })\ntest.only(\"x\", f)\n// it('gone', f)\n"
            "xdescribe('y', () => {})\n",
            ["adds", "x"], 2, 1,
        ),
        (
            "a_test.go",
            'func TestA(t *testing.T) {\n  t.Skip("later")\n  t.Errorf("x")\n}\nfunc helper() {}\n',
            ["TestA"], 1, 1,
        ),
        (
            "src/lib.rs",
            "#[test]\n#[ignore]\nfn adds() { assert_eq!(1, 1); }\nfn other() {}\n",
            ["adds"], 1, 1,
        ),
        (
            "ATest.java",
            "@Test\nvoid adds() {\n  assertEquals(1, 1);\n}\n@Disabled @Test void gone() {}\n",
            ["adds", "gone"], 1, 1,
        ),
        ("a_spec.rb", "it 'adds' do\n  expect(1).to eq 1\nend\nxit 'no' do\nend\n", ["adds"], 1, 1),
        ("ATest.php", "function testAdds() { $this->assertSame(1, 1); }", ["testAdds"], 0, 1),
        ("a.txt", "def test_a(): assert 1", [], 0, 0),
        ("test_a.py", "def test_a(): assert 1\0", [], 0, 0),
    ],
)  # fmt: skip
def test_counts(path, text, names, skips, assertions):
    found = count_tests(path, text.encode())
    assert (sorted(found.names.elements()), found.skips, found.assertions) == (
        names, skips, assertions,
    )  # fmt: skip


SUFFIXES = ["py", "ts", "go", "rs", "java", "rb", "php", "swift", "feature"]


@given(st.sampled_from(SUFFIXES), st.binary())
def test_no_content_raises(suffix, content):
    count_tests(f"a.{suffix}", content)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("unit", ["a", "it(", "test.", "@Test ", "[Fact", " ", "#[cfg_attr("])
def test_long_lines_take_linear_time(suffix, unit):
    count_tests(f"a.{suffix}", unit.encode() * 100_000)


@pytest.mark.parametrize(
    ("path", "lock", "manifest"),
    [
        ("a/package-lock.json", True, False),
        ("package.json", False, True),
        ("requirements-dev.txt", False, True),
        ("requirements/base.txt", False, True),
        ("Cargo.lock", True, False),
        ("src/lock.py", False, False),
        ("notes.txt", False, False),
    ],
)
def test_dependency_files(path, lock, manifest):
    assert (is_lock(path), is_manifest(path)) == (lock, manifest)
