"""Only what pyproject.toml cannot say: the C extension, its abi3 tag, and two moved files.

Built distributions differ from this tree in three places:
  wheel/__init__.py -> wheel.py              shares no file with PyPA's distribution `wheel`
  wheeld.py         -> wheeld/__init__.py    a package can carry py.typed, a module cannot
  server/, wal/     -> wheeld/_daemon/       users have such names too (see pyproject.toml)
"""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

MAIN = '"""python -m wheeld."""\n\nfrom wheeld import main\n\nraise SystemExit(main())\n'
NO_COMPILER = (
    "wheeld: the C core needs a C compiler and Python's headers, and {what}: install both "
    "(Debian: apt-get install gcc python3-dev), then try again"
)


class BuildPy(build_py):
    """Copy the modules, then move the two files (not in editable installs)."""

    def run(self) -> None:
        """Build."""
        super().run()
        if self.editable_mode:
            return
        lib = Path(self.build_lib)
        (lib / "wheel" / "__init__.py").replace(lib / "wheel.py")
        package = lib / "wheeld"
        package.mkdir(exist_ok=True)
        (lib / "wheeld.py").replace(package / "__init__.py")
        (package / "__main__.py").write_text(MAIN)
        (package / "py.typed").touch()


class BuildExt(build_ext):
    """Build the C core, or say in one sentence what the machine lacks."""

    def build_extensions(self) -> None:
        """Build; on failure tell a machine without a compiler from a fault in the C core."""
        one_by_one = self.compiler.compile

        def side_by_side(sources: list[str], *args: object, **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                done = pool.map(lambda source: one_by_one([source], *args, **options), sources)
                return [path for paths in done for path in paths]

        self.compiler.compile = side_by_side
        try:
            super().build_extensions()
        except CompileError:
            for what, source in {
                "no compiler works here": "int main(void) { return 0; }\n",
                "the headers are not here": "#include <Python.h>\n",
            }.items():
                if not self._compiles(source):
                    raise SystemExit(NO_COMPILER.format(what=what)) from None
            raise

    def _compiles(self, source: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "probe.c"
            path.write_text(source)
            try:
                self.compiler.compile([str(path)], output_dir=folder)
            except CompileError:
                return False
        return True


setup(
    cffi_modules=["csrc/build_ffi.py:ffibuilder"],
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
