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

// Finding is something that an admin should know about the cluster.
type Finding struct {
	Check    string   `json:"check"` // stable name, for scripts
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Cost     string   `json:"cost,omitempty"` // of applying Fix
	Fix      []Fix    `json:"fix,omitempty"`
}

// Fix is one step of the remedy: lines to write into a file, or commands to run.
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

// check is a row of the table. If its source is known, each of its hits becomes a finding.
type check struct {
	name     string
	severity Severity
	reads    source
	hits     []hit
	// Texts may contain $NAME for a value; see expand. Lines of the fix that expand to "" are left out.
	what, why string
	cost      string // of applying the fix, including the cost to jobs and users that never share; "" = none
	fix       []Fix
}

// source reports whether the facts that a check reads, besides the bridge's settings, are known.
type source func(*Facts) bool

func slurmConf(f *Facts) bool  { return f.Config != nil }
func files(f *Facts) bool      { return slurmConf(f) && f.ConfDir != "" && f.Unread == nil } // in slurm.conf's folder
func nodes(f *Facts) bool      { return slurmConf(f) && f.Nodes != nil }
func partitions(f *Facts) bool { return slurmConf(f) && f.Partitions != nil }
func hooks(f *Facts) bool      { return slurmConf(f) && f.Hooks != nil }
func bridgeUser(f *Facts) bool { return slurmConf(f) && f.User != "" }
func agents(f *Facts) bool     { return slurmConf(f) && f.Agents != nil }
func daemon(f *Facts) bool     { return slurmConf(f) && f.Daemon != nil }
func running(f *Facts) bool    { return daemon(f) && f.Daemon.healthy() }
func database(f *Facts) bool   { return strings.HasSuffix(f.Config["AccountingStorageType"], "slurmdbd") }
func anything(*Facts) bool     { return true } // even if slurmctld doesn't answer

// hit is one thing that a check found: the values of the names in its texts. A value "severity" replaces the check's.
type hit map[string]string

// hitIf returns one hit if cond is true, else none. pairs are the hit's names and values.
func hitIf(cond bool, pairs ...string) []hit {
	if !cond {
		return nil
	}
	h := hit{}
	for i := 0; i < len(pairs); i += 2 {
		h[pairs[i]] = pairs[i+1]
	}
	return []hit{h}
}

func hitEach(name string, values []string) (hits []hit) {
	for _, v := range values {
		hits = append(hits, hit{name: v})
	}
	return hits
}

func choose[T any](cond bool, yes, no T) T {
	if cond {
		return yes
	}
	return no
}

// exam holds the facts, and what several checks derive from them.
type exam struct {
	*Facts
	values  hit // available to every text
	release text.Release
	sharing string       // the kind of shares that the cluster has or should get: mps or shard
	gpus    []*text.Node // nodes with GPUs
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
	onlyShards := e.anyShares("shard") && !e.anyShares("mps")
	if e.hasOption("GresTypes", "shard") && (!e.hasOption("GresTypes", "mps") || onlyShards) {
		e.sharing = "shard"
	}
	conf := cmp.Or(f.Config["SLURM_CONF"], "/etc/slurm/slurm.conf")
	s := f.Settings
	slurm, _, _ := text.User(f.Config["SlurmUser"])
	e.values = hit{
		"SLURM_CONF": conf, "dir": filepath.Dir(conf), "lua": filepath.Join(filepath.Dir(conf), "job_submit.lua"),
		"sharing": e.sharing, "user": f.User, "slurm": slurm, "owner": cmp.Or(f.User, slurm),
		"gates": cmp.Or(s.GatePartition, config.Default().GatePartition), "gate": s.GateFile(), "wake": s.WakeFile(),
		"mode": s.Mode, "policy": s.Policy, "keyFile": cmp.Or(s.KeyFile, "/etc/slurmbridge/key"),
		"key": orEmpty(f.Key), "munge": orEmpty(f.Munge), "token": orEmpty(f.Token),
	}
	return e
}

func (e *exam) anyShares(kind string) bool {
	return slices.ContainsFunc(e.gpus, func(n *text.Node) bool { return n.Shares[kind] > 0 })
}

// Examine returns the findings, errors first, in a fixed order.
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
			f.Fix = append(f.Fix, Fix{say(fix.File), lines})
			f.Cost = say(c.cost)
		}
	}
	return f
}

// expand replaces $NAME by a value of the hit, of the exam, or of slurm.conf. ${NAME+WORD} is a list in slurm.conf with
// WORD appended unless it is there, ${NAME-WORD} the list without WORD.
func (e *exam) expand(template string, h hit) string {
	return os.Expand(template, func(name string) string {
		if key, word, ok := strings.Cut(name, "+"); ok {
			return withWords(e.Config[key], word)
		}
		if key, word, ok := strings.Cut(name, "-"); ok {
			return withoutWords(e.Config[key], func(w string) bool { return strings.EqualFold(w, word) })
		}
		for _, values := range []hit{h, e.values} {
			if value, ok := values[name]; ok {
				return value
			}
		}
		return e.Config[name]
	})
}

// withWords appends the words that a comma-separated list lacks.
func withWords(list string, words ...string) string {
	for _, w := range words {
		if !text.HasOption(list, w) {
			list = strings.TrimPrefix(list+","+w, ",")
		}
	}
	return list
}

// withoutWords removes the words for which unwanted is true.
func withoutWords(list string, unwanted func(word string) bool) string {
	words := strings.Split(list, ",")
	words = slices.DeleteFunc(words, func(w string) bool { return unwanted(strings.TrimSpace(w)) })
	return strings.Join(words, ",")
}
