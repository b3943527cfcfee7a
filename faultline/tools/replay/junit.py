"""The diagnosis and the gates of a verdict as a JUnit file, the form of test results that CI systems read."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from faultline.tools.replay.terminal import diagnosis_lines, first_line, measured
from faultline.tools.replay.verdict import Verdict
from harness.errors import printable
from harness.files import output_folder, write_file

ELEMENTS = {"fail": "failure", "undecided": "error"}
"""Outcome of a gate -> JUnit's element for a test case that does not pass."""


def write_junit(path: Path, verdict: Verdict) -> None:
    """Write a JUnit file with a test case for the diagnosis, and one for each gate.

    A gate that is undecided, or a diagnosis of too few prompts or of a copied column, is an error. A gate that fails, or a fault,
    is a failure.
    """
    d = verdict.diagnosis
    sound = "fail" if not d.consistent else "pass" if d.tells else "undecided"
    cases = [("log-probabilities", sound, first_line(d), diagnosis_lines(d))]
    cases += [(gate.gate, gate.outcome, f"{gate.outcome}: {measured(gate)}", []) for gate in verdict.gates]
    count = {element: str(sum(outcome == name for _, outcome, *_ in cases)) for name, element in ELEMENTS.items()}
    suite = ElementTree.Element(
        "testsuite", name="faultline replay", tests=str(len(cases)), failures=count["failure"], errors=count["error"]
    )
    for name, outcome, message, more in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=printable(verdict.dump.name), name=name)
        if outcome in ELEMENTS:
            element = ElementTree.SubElement(case, ELEMENTS[outcome], message=printable(message))
            element.text = "\n".join(map(printable, more))
        else:
            ElementTree.SubElement(case, "system-out").text = printable(message)
    write_file(output_folder(path.parent), path.name, ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
