"""Print how much of the house each verb enters, and what else its architecture is measured by.

python -m tests.architecture.measure [VERB ...]
"""

from __future__ import annotations

import argparse

from tests.architecture.source_facts import files_that_change_together, private_names
from tests.architecture.verb_paths import VERBS, ceilings, path_of


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verbs", nargs="*", metavar="VERB", help=f"of {', '.join(VERBS)}; by default all of them")
    print(f"{'verb':<16}{'files':>7}{'lines':>9}{'modules':>9}{'ceilings (goal)':>26}  features entered in vain")
    for verb in parser.parse_args().verbs or VERBS:
        path, most = path_of(verb), ceilings().get(verb)
        allowed = f"{most['files']} files ({most['goal']}), {most['modules']} modules" if most else "none yet"
        vain = ", ".join(path.in_vain) if verb == "program" else ""
        print(f"{verb:<16}{len(path.files):>7}{path.num_lines:>9,}{path.modules:>9}{allowed:>26}  {vain}", flush=True)
    print("\nfiles that change together in more than half of their commits:")
    for together, either, one, other in files_that_change_together():
        print(f"  {together} of {either}: {one}, {other}")
    print("\nprivate names of JAX and Python:")
    for file, names in private_names().items():
        print(f"  {file}: {', '.join(names)}")


if __name__ == "__main__":
    main()
