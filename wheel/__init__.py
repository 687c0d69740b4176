"""wheeld's client facade: ``wheel.schedule_at(...)``.

PyPA's ``wheel`` distribution uses this import name too. So the built distribution installs this
file as the module ``wheel.py`` beside the folder ``wheel/`` (setup.py): it owns no file that
PyPA's owns, and PyPA's package wins where both are installed. ``import wheeld`` always works.
Kept light: names load on first use (wheel/facade.py); nothing but os and sys is imported.
"""

import os
import sys

if "__path__" not in globals():  # installed as wheel.py: act as a package
    __path__ = [os.path.join(os.path.dirname(__file__), "wheel")]
for _entry in sys.path:  # keep setuptools' vendored wheel, or PyPA's, importable
    _folder = os.path.join(_entry or os.curdir, "wheel")
    if _folder not in __path__ and os.path.isfile(os.path.join(_folder, "__init__.py")):
        __path__.append(_folder)


def __getattr__(name):
    from wheel.facade import load

    return load(name, __name__)


def __dir__():
    from wheel.facade import names

    return names()
