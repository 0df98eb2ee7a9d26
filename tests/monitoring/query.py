"""Asks a running Prometheus for each panel of docs/grafana.json and each alert of docs/alerts.yml.

Usage: query.py PROMETHEUS_URL. Prints what is wrong and exits with 1 if a query fails or finds no series, or if a rule
does not load.
"""

import json
import pathlib
import re
import sys
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What Grafana puts in the place of its variables.
VARIABLES = {"$instance": ".*", "$__rate_interval": "1m"}
# These have series only after an observation, and the test waits for none.
NEEDS_OBSERVATION = {"Retention"}


def get(url, path, **arguments):
    query = urllib.parse.urlencode(arguments)
    try:
        with urllib.request.urlopen(f"{url}{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{arguments}: {error.read().decode()}") from error


def main(url):
    problems = []
    dashboard = json.loads((ROOT / "docs/grafana.json").read_text())
    expressions = [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]
    for title, expression in expressions:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        found = get(url, "/api/v1/query", query=expression)["result"]
        if not found and title not in NEEDS_OBSERVATION:
            problems.append(f"panel {title!r} finds no series: {expression}")
    groups = get(url, "/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    problems += [f"alert {it['name']}: {it['lastError']}" for it in rules if it["health"] != "ok"]
    written = len(re.findall(r"- alert:", (ROOT / "docs/alerts.yml").read_text()))
    if len(rules) != written or not written:
        problems.append(f"{len(rules)} of {written} alerts are loaded")
    if len(expressions) < 10:
        problems.append(f"the dashboard has only {len(expressions)} queries")
    print(f"{len(expressions)} queries and {len(rules)} alerts asked of Prometheus")
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
