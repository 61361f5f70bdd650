"""What acceptance does on the controller that isn't a command of the pages."""

import json
import sqlite3
import subprocess
import sys
import urllib.request

CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm/gres.conf")


def merge(text, line):
    """Puts a line into a configuration of Slurm's. Its NAME=VALUE words replace those of the line with the same setting
    or, after NodeName=, PartitionName= and Name=, of the same name; "…" and the value TYPE keep what is there."""
    words = line.split()
    if not words or line.startswith("#"):
        return text

    def name(word):
        return word.split("=")[0].lower()

    lines = text.splitlines()
    for i, old in enumerate(lines):
        have = old.split()
        of_a_name = name(words[0]) in ("nodename", "partitionname", "name")
        if not have or name(have[0]) != name(words[0]) or of_a_name and have[0] != words[0]:
            continue
        for word in words:
            same = [k for k, h in enumerate(have) if name(h) == name(word)]
            if "=" not in word or word.endswith("=TYPE"):
                continue
            if same:
                have[same[0]] = word
            else:
                have.append(word)
        lines[i] = " ".join(have)
        return "\n".join(lines) + "\n"
    return text + line + "\n"


def obey():
    """Follows doctor's advice, as an admin would: lines into slurm.conf and gres.conf, replacing the old ones, and the
    job_submit script next to them. Prints the checks that it did something for."""
    said = subprocess.run(["slurmbridge", "doctor", "--json"], stdout=subprocess.PIPE).stdout
    done = []
    for finding in json.loads(said)["findings"]:
        did = False
        for fix in finding.get("fix") or []:
            file, lines = fix.get("file", ""), fix.get("lines") or []
            for line in lines:
                if file in CONFS:
                    with open(file) as f:
                        text = merge(f.read(), line)
                    with open(file, "w") as f:
                        f.write(text)
                    did = True
                elif not file and line.startswith("install "):
                    subprocess.run(line, shell=True, check=True)
                    did = True
            if file == "/etc/slurmbridge/slurmbridge.yaml" and finding["check"] in ("gate-seen", "used-gpus", "planned-gpus"):
                setting = lines[0].split(":")[0]
                subprocess.run(["sed", "-i", f"s/^{setting}:.*/{lines[0]}/", file], check=True)
        if did:
            done.append(finding["check"])
    print(", ".join(done))


def records():
    """Prints how many runs the bridge's database holds."""
    db = sqlite3.connect("file:/var/lib/slurmbridge/slurmbridge.db?mode=ro", uri=True, timeout=5)
    print(db.execute("SELECT count(*) FROM record").fetchone()[0])


def groups(*pairs):
    """Prints how many of the pairs of jobs, "8,9", started as one group, and the longest time between two starts, ms."""
    with urllib.request.urlopen("http://head:9797/v1/groups") as answer:
        all_groups = json.load(answer)
    found = {}
    for pair in pairs:
        for g in all_groups:
            members = {m["ref"] for m in g["members"]}
            if g["complete"] and members.issuperset(pair.split(",")):
                found[pair] = round(1000 * g["skew_s"])
    print(len(found), max(found.values(), default=0))


{f.__name__: f for f in (obey, records, groups)}[sys.argv[1]](*sys.argv[2:])
