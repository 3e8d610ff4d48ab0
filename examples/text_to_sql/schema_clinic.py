"""A small clinic: its tables, its rows and what one may ask about them."""

from __future__ import annotations

import random
from collections.abc import Sequence

NAME = "clinic"

TABLES = """
CREATE TABLE department (department_id INTEGER PRIMARY KEY, name TEXT NOT NULL, floor INTEGER);
CREATE TABLE doctor (doctor_id INTEGER PRIMARY KEY, name TEXT NOT NULL,
  department_id INTEGER REFERENCES department, hired INTEGER, salary INTEGER);
CREATE TABLE patient (patient_id INTEGER PRIMARY KEY, name TEXT NOT NULL, birth_year INTEGER, city TEXT);
CREATE TABLE visit (visit_id INTEGER PRIMARY KEY, patient_id INTEGER REFERENCES patient,
  doctor_id INTEGER REFERENCES doctor, visited_on TEXT, reason TEXT, fee INTEGER);
"""

DEPARTMENTS = ["Cardiology", "Dermatology", "Neurology", "Paediatrics", "Radiology"]
DOCTORS = [
    "Dr Abel",
    "Dr Brandt",
    "Dr Costa",
    "Dr Dunn",
    "Dr Ekman",
    "Dr Fabre",
    "Dr Gray",
    "Dr Hale",
    "Dr Ito",
]
PATIENTS = [
    "Alma", "Bela", "Cyril", "Dina", "Emil", "Fiona", "Gus", "Hedda", "Igor", "Jana", "Karl", "Lea",
    "Milo", "Nora", "Otto", "Pia", "Rune", "Sara", "Timo", "Ulla",
]  # fmt: skip
CITIES = ["Ashby", "Bellow", "Corrin", "Dunmere"]
REASONS = ["check-up", "fever", "injury", "rash", "headache"]


def rows(rng: random.Random) -> dict[str, Sequence[tuple[object, ...]]]:
    """The rows of each table."""
    departments = [(i, name, (i + 1) // 2) for i, name in enumerate(DEPARTMENTS, 1)]
    salaries = rng.sample(range(52_000, 98_000, 500), len(DOCTORS))
    hired = rng.sample(range(1995, 2023), len(DOCTORS))
    # The last department has nobody yet.
    doctors = [
        (i, name, 1 + (i * 3) % 4, hired[i - 1], salaries[i - 1])
        for i, name in enumerate(DOCTORS, 1)
    ]
    years = rng.sample(range(1938, 2018), len(PATIENTS))
    patients = [(i, name, years[i - 1], rng.choice(CITIES)) for i, name in enumerate(PATIENTS, 1)]
    visits = [
        (
            i,
            rng.randrange(1, len(PATIENTS) - 1),
            rng.randrange(1, len(DOCTORS)),
            f"2024-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}",
            rng.choice(REASONS),
            rng.randrange(30, 250, 5),
        )
        for i in range(1, 101)
    ]
    return {"department": departments, "doctor": doctors, "patient": patients, "visit": visits}


QUESTIONS = [
    ("easy", "How many doctors work at the clinic?", "SELECT count(*) FROM doctor"),
    ("easy", "On which floor is Neurology?", "SELECT floor FROM department WHERE name = 'Neurology'"),
    ("easy", "List the names of the patients from Ashby.", "SELECT name FROM patient WHERE city = 'Ashby'"),
    ("easy", "What is the highest salary of a doctor?", "SELECT max(salary) FROM doctor"),
    ("easy", "Which different reasons for a visit are recorded?", "SELECT DISTINCT reason FROM visit"),
    ("easy", "Who is the youngest patient?", "SELECT name FROM patient ORDER BY birth_year DESC LIMIT 1"),
    ("easy", "How many visits were because of a fever?", "SELECT count(*) FROM visit WHERE reason = 'fever'"),
    ("medium", "How many visits were there for each reason?", "SELECT reason, count(*) FROM visit GROUP BY reason"),
    ("medium", "List each doctor's name with the name of the department.", "SELECT d.name, p.name FROM doctor AS d JOIN department AS p ON d.department_id = p.department_id"),
    ("medium", "List names and salaries of the doctors, the best paid first.", "SELECT name, salary FROM doctor ORDER BY salary DESC"),
    ("medium", "What did each patient with a visit pay in all? Give name and sum.", "SELECT p.name, sum(v.fee) FROM patient AS p JOIN visit AS v ON p.patient_id = v.patient_id GROUP BY p.patient_id"),
    ("medium", "Which cities have at least 4 patients?", "SELECT city FROM patient GROUP BY city HAVING count(*) >= 4"),
    ("medium", "How many patients were born in 1980 or later?", "SELECT count(*) FROM patient WHERE birth_year >= 1980"),
    ("medium", "How many different patients has Dr Hale seen?", "SELECT count(DISTINCT v.patient_id) FROM visit AS v JOIN doctor AS d ON v.doctor_id = d.doctor_id WHERE d.name = 'Dr Hale'"),
    ("medium", "What is the lowest and the highest fee of a visit because of a rash?", "SELECT min(fee), max(fee) FROM visit WHERE reason = 'rash'"),
    ("hard", "Which departments have no doctor?", "SELECT name FROM department WHERE department_id NOT IN (SELECT department_id FROM doctor)"),
    ("hard", "Which doctors have had no visit?", "SELECT d.name FROM doctor AS d LEFT JOIN visit AS v ON d.doctor_id = v.doctor_id WHERE v.visit_id IS NULL"),
    ("hard", "List the names of the doctors who earn more than the average doctor.", "SELECT name FROM doctor WHERE salary > (SELECT avg(salary) FROM doctor)"),
    ("hard", "Which patients have come because of a fever and also because of an injury? Give their ids.", "SELECT patient_id FROM visit WHERE reason = 'fever' INTERSECT SELECT patient_id FROM visit WHERE reason = 'injury'"),
    ("hard", "For each department with doctors, who is the best paid doctor? Give department and doctor.", "SELECT p.name, d.name FROM department AS p JOIN doctor AS d ON d.department_id = p.department_id WHERE d.salary = (SELECT max(e.salary) FROM doctor AS e WHERE e.department_id = p.department_id)"),
]  # fmt: skip
"""Hardness, question and gold query."""
