// Package doctor compares a cluster's configuration with what the bridge needs
// and says, in an admin's words, what is missing and which lines to write where.
// Collect, AskDaemon and AskAgents read the facts; Examine, a pure function, holds them against the table of checks.
package doctor

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	Note    Severity = "note"    // good to know
	Warning Severity = "warning" // it works, but worse than it could, or at a risk
	Error   Severity = "error"   // the bridge can't do its work like this
)

// severities are in the order of the exit code.
var severities = []Severity{Note, Warning, Error}

// Finding is one thing to know about the cluster.
type Finding struct {
	Check    string   `json:"check"` // stable name, for scripts
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Cost     string   `json:"cost,omitempty"` // of following it
	// Fix is what to write into which file, or what to run.
	Fix []Fix `json:"fix,omitempty"`
}

// Fix is one step of a cure.
type Fix struct {
	File  string   `json:"file,omitempty"` // "" = commands to run
	Lines []string `json:"lines"`
}

// Exit is the exit code of `slurmbridge doctor` for these findings: 2 with errors, 1 with warnings, else 0.
func Exit(findings []Finding) (code int) {
	for i := range findings {
		code = max(code, slices.Index(severities, findings[i].Severity))
	}
	return code
}

// check is a row of the table: where what it reads is known, each of its hits is a finding.
type check struct {
	name     string
	severity Severity
	reads    source
	hits     []hit
	// In the texts $NAME stands for a value; see expand. A line of the fix that comes to nothing is left out.
	what, why string
	cost      string // of following the advice, for jobs and users that never ask to share, too; "" = none
	fix       []Fix
}

// source is what a check reads besides the bridge's settings; it reports whether that is known.
type source func(*Facts) bool

func slurmConf(f *Facts) bool  { return f.Config != nil }
func files(f *Facts) bool      { return slurmConf(f) && f.ConfDir != "" && f.Unread == nil } // beside slurm.conf
func nodes(f *Facts) bool      { return slurmConf(f) && f.Nodes != nil }
func partitions(f *Facts) bool { return slurmConf(f) && f.Partitions != nil }
func hooks(f *Facts) bool      { return slurmConf(f) && f.Hooks != nil }
func ofUser(f *Facts) bool     { return slurmConf(f) && f.User != "" } // that the bridge runs as
func agents(f *Facts) bool     { return slurmConf(f) && f.Agents != nil }
func daemon(f *Facts) bool     { return slurmConf(f) && f.Daemon != nil }
func running(f *Facts) bool    { return daemon(f) && f.Daemon.speaks() }
func database(f *Facts) bool   { return strings.HasSuffix(f.Config["AccountingStorageType"], "slurmdbd") }
func anything(*Facts) bool     { return true } // also where slurmctld doesn't answer

// hit is what a check has found: values, by the names that texts have for them. Its "severity", if there is one, counts
// in place of the check's.
type hit map[string]string

// when returns one hit if so is true, else none. pairs are the hit's names and values.
func when(so bool, pairs ...string) []hit {
	if !so {
		return nil
	}
	h := hit{}
	for i := 0; i < len(pairs); i += 2 {
		h[pairs[i]] = pairs[i+1]
	}
	return []hit{h}
}

// each returns one hit for each value.
func each(name string, values []string) (hits []hit) {
	for _, v := range values {
		hits = append(hits, hit{name: v})
	}
	return hits
}

func either[T any](so bool, this, that T) T {
	if so {
		return this
	}
	return that
}

// exam holds the facts, and what several checks derive from them.
type exam struct {
	*Facts
	values  hit // that every text may name
	release text.Release
	sharing string       // the kind of shares that the cluster has or should get
	gpus    []*text.Node // the nodes that have GPUs
	daemon  *Daemon      // never nil
}

func newExam(f *Facts) *exam {
	version := f.Config["SLURM_VERSION"]
	e := &exam{Facts: f, sharing: "mps", release: text.ParseRelease(version), daemon: cmp.Or(f.Daemon, &Daemon{})}
	for i := range e.Nodes {
		if e.Nodes[i].GPUs > 0 {
			e.gpus = append(e.gpus, &e.Nodes[i])
		}
	}
	by := func(kind string) bool {
		return slices.ContainsFunc(e.gpus, func(n *text.Node) bool { return n.Shares[kind] > 0 })
	}
	if e.has("GresTypes", "shard") && (!e.has("GresTypes", "mps") || by("shard") && !by("mps")) {
		e.sharing = "shard"
	}
	conf, s := cmp.Or(f.Config["SLURM_CONF"], "/etc/slurm/slurm.conf"), f.Settings
	slurm, _, _ := text.User(f.Config["SlurmUser"])
	e.values = hit{
		"SLURM_CONF": conf, "dir": filepath.Dir(conf), "lua": filepath.Join(filepath.Dir(conf), "job_submit.lua"),
		"sharing": e.sharing, "user": f.User, "slurm": slurm, "owner": cmp.Or(f.User, slurm),
		"gates": cmp.Or(s.GatePartition, config.Default().GatePartition), "gate": s.GateFile, "wake": s.WakeFile,
		"mode": s.Mode, "policy": s.Policy, "keyFile": cmp.Or(s.KeyFile, "/etc/slurmbridge/key"),
		"key": wrong(f.Key), "munge": wrong(f.Munge), "token": wrong(f.Token),
	}
	return e
}

// Examine returns what there is to say, errors first, in a fixed order.
func Examine(f *Facts) []Finding {
	e := newExam(f)
	found := []Finding{}
	for _, c := range e.checks() {
		if !c.reads(f) {
			continue
		}
		for _, h := range c.hits {
			found = append(found, e.finding(&c, h))
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return slices.Index(severities, b.Severity) - slices.Index(severities, a.Severity)
	})
	return found
}

func (e *exam) finding(c *check, h hit) Finding {
	say := func(template string) string { return e.expand(template, h) }
	f := Finding{
		Check: say(c.name), Severity: cmp.Or(Severity(h["severity"]), c.severity), What: say(c.what), Why: say(c.why),
	}
	for _, fix := range c.fix {
		var lines []string
		for _, line := range fix.Lines {
			if line = say(line); line != "" {
				lines = append(lines, strings.Split(line, "\n")...)
			}
		}
		if lines != nil {
			f.Fix, f.Cost = append(f.Fix, Fix{say(fix.File), lines}), say(c.cost)
		}
	}
	return f
}

// expand puts values in the place of $NAME: one of the hit, of the exam, or a setting of slurm.conf. ${NAME+WORD} is a
// list of slurm.conf's with a word that it lacks, ${NAME-WORD} without one that it has.
func (e *exam) expand(template string, h hit) string {
	return os.Expand(template, func(name string) string {
		if key, word, ok := strings.Cut(name, "+"); ok {
			return with(e.Config[key], word)
		}
		if key, word, ok := strings.Cut(name, "-"); ok {
			return without(e.Config[key], func(w string) bool { return strings.EqualFold(w, word) })
		}
		for _, values := range []hit{h, e.values} {
			if value, ok := values[name]; ok {
				return value
			}
		}
		return e.Config[name]
	})
}

// with appends the words that a comma-separated list lacks; without removes the words for which such is true.
func with(list string, words ...string) string {
	for _, w := range words {
		if !text.HasOption(list, w) {
			list = strings.TrimPrefix(list+","+w, ",")
		}
	}
	return list
}

func without(list string, such func(word string) bool) string {
	trimmed := func(w string) bool { return such(strings.TrimSpace(w)) }
	return strings.Join(slices.DeleteFunc(strings.Split(list, ","), trimmed), ",")
}
