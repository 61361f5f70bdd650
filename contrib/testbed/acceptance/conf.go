package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// finding is one of `slurmbridge doctor --json`.
type finding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"`
	Fix      []struct {
		File  string   `json:"file"`
		Lines []string `json:"lines"`
	} `json:"fix"`
}

// obey follows doctor's advice, as an admin would: lines into slurm.conf and gres.conf,
// replacing the old ones, and the job_submit script next to them. It returns the
// checks that it did something for.
func (r *rig) obey(ctx context.Context) ([]string, error) {
	out, _ := r.head.sh(ctx, "slurmbridge doctor --json")
	var said struct {
		Findings []finding `json:"findings"`
	}
	if err := json.Unmarshal([]byte(out), &said); err != nil {
		return nil, fmt.Errorf("doctor --json: %w: %s", err, tail(out))
	}
	var done []string
	for _, f := range said.Findings {
		did := false
		for _, fix := range f.Fix {
			switch fix.File {
			case "/etc/slurm/slurm.conf", "/etc/slurm/gres.conf":
				if err := r.edit(fix.File, fix.Lines); err != nil {
					return nil, err
				}
				did = true
			case "/etc/slurmbridge/slurmbridge.yaml":
				if f.Check == "gate-seen" || f.Check == "used-gpus" {
					key, _, _ := strings.Cut(fix.Lines[0], ":")
					if _, err := r.head.sh(ctx, fmt.Sprintf("sed -i 's/^%s:.*/%s/' %s", key, fix.Lines[0], fix.File)); err != nil {
						return nil, err
					}
				}
			case "":
				for _, l := range fix.Lines {
					if strings.HasPrefix(l, "install ") {
						if _, err := r.head.sh(ctx, l); err != nil {
							return nil, err
						}
						did = true
					}
				}
			}
		}
		if did {
			done = append(done, f.Check)
		}
	}
	return done, r.sameConf()
}

// edit writes lines into a file of Slurm's on the controller.
func (r *rig) edit(file string, lines []string) error {
	path := filepath.Join(r.head.dir, file)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	merged := string(text)
	for _, l := range lines {
		merged = merge(merged, l)
	}
	return os.WriteFile(path, []byte(merged), 0o644)
}

// merge puts a line into a configuration of Slurm's. One that begins with NodeName=,
// PartitionName= or Name= describes a thing: what it says of it takes the place of what was said, "…" and
// words like TYPE stand for what is there. Any other line is a setting and replaces that
// setting.
func merge(text, line string) string {
	fields := strings.Fields(line)
	if len(fields) == 0 || strings.HasPrefix(line, "#") {
		return text
	}
	key, value, _ := strings.Cut(fields[0], "=")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, have := range lines {
		k, v, _ := strings.Cut(strings.TrimSpace(have), "=")
		switch {
		case !strings.EqualFold(k, key):
		case !strings.EqualFold(key, "NodeName") && !strings.EqualFold(key, "PartitionName") && !strings.EqualFold(key, "Name"):
			lines[i] = line
			return strings.Join(lines, "\n") + "\n"
		default:
			if first, _, _ := strings.Cut(v, " "); first == value {
				lines[i] = mergeFields(have, fields[1:])
				return strings.Join(lines, "\n") + "\n"
			}
		}
	}
	return text + line + "\n"
}

// mergeFields replaces NAME=VALUE words of a line, and adds those it lacks.
func mergeFields(line string, fields []string) string {
	have := strings.Fields(line)
	for _, f := range fields {
		k, v, ok := strings.Cut(f, "=")
		if !ok || v == "TYPE" {
			continue
		}
		there := false
		for i, h := range have {
			if hk, _, _ := strings.Cut(h, "="); strings.EqualFold(hk, k) {
				have[i], there = f, true
			}
		}
		if !there {
			have = append(have, f)
		}
	}
	return strings.Join(have, " ")
}

// sameConf copies Slurm's files from the controller to the node: they are the same on
// all machines of a cluster.
func (r *rig) sameConf() error {
	for _, f := range []string{"/etc/slurm/slurm.conf", "/etc/slurm/gres.conf"} {
		text, err := os.ReadFile(filepath.Join(r.head.dir, f))
		if err != nil {
			return err
		}
		if err := r.node.write(f, string(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
