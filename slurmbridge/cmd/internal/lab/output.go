package lab

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/pflag"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

// isSpecial reports whether what is there is a device or a pipe, which is written to and never replaced.
func isSpecial(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.Mode().IsRegular() && !st.IsDir()
}

// writable checks before long work that its result can be written. "" and "-" are no files.
func writable(file string) error {
	if file == "" || file == "-" || isSpecial(file) {
		return nil
	}
	if st, err := os.Stat(file); err == nil && st.IsDir() {
		return fmt.Errorf("can't write %s: %w", file, syscall.EISDIR)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".slurmbridge-*")
	if err != nil {
		return fmt.Errorf("can't write %s: %w", file, cli.Cause(err))
	}
	_ = f.Close() // nothing was written
	return os.Remove(f.Name())
}

// columns are the figures of a policy; a column that is empty in all rows isn't shown.
var columns = []struct {
	name string
	of   func(*experiment.Line) string
}{
	{"makespan s", func(l *experiment.Line) string { return fixed(0, l.MakespanS) }},
	{"turnaround s", func(l *experiment.Line) string { return fixed(0, l.TurnaroundS) }},
	{"÷ fifo", func(l *experiment.Line) string { mean, _ := l.Ratio(); return fixed(3, mean) }},
	{"±", func(l *experiment.Line) string { _, sd := l.Ratio(); return some(3, sd) }},
	{"thesis", func(l *experiment.Line) string { return some(3, l.Thesis) }},
	{"÷ best other", func(l *experiment.Line) string { return some(3, l.VsBest) }},
	{"of possible", func(l *experiment.Line) string { return percent(0, l.PossibleShare) }},
	{"slowdown", func(l *experiment.Line) string { return fixed(2, l.MeanSlowdown) }},
	{"95 %", func(l *experiment.Line) string { return fixed(2, l.P95Slowdown) }},
	{"worst", func(l *experiment.Line) string { return fixed(2, l.MaxSlowdown) }},
	{"late", func(l *experiment.Line) string { return percent(1, l.Late) }},
	{"worst late", func(l *experiment.Line) string { return fixed(2, l.WorstLate) }},
	{"GPU", func(l *experiment.Line) string { return percent(0, l.GPUUtil) }},
	{"memory", func(l *experiment.Line) string { return percent(0, l.MemUtil) }},
	{"lost runs", func(l *experiment.Line) string { return fixed(1, l.OOM) }},
	{"timed out", func(l *experiment.Line) string { return some(1, l.TimedOut) }},
	{"harmed", func(l *experiment.Line) string { return some(1, l.HarmedTimeout) }},
	{"training s", func(l *experiment.Line) string { return some(1, l.TrainS) }},
}

// lineTable begins a table of lines.
func (s *shared) lineTable(title string) table.Writer {
	head := []any{"load", "policy"}
	for _, c := range columns {
		head = append(head, c.name)
	}
	t := s.Table(title, head...)
	t.SuppressEmptyColumns()
	return t
}

// appendLines adds a row for each policy, and one for the bound below which no schedule is, of what the column of that
// name shows. load "" = there is one only.
func appendLines(t table.Writer, load string, lines map[string]*experiment.Line, bound float64, of string) {
	for _, name := range experiment.Names() {
		l := lines[name]
		if l == nil {
			continue
		}
		row := table.Row{load, name}
		for _, c := range columns {
			row = append(row, c.of(l))
		}
		t.AppendRow(row)
	}
	row := table.Row{load, "lower bound"}
	for _, c := range columns {
		text := ""
		if c.name == of {
			text = fixed(0, bound)
		}
		row = append(row, text)
	}
	t.AppendRow(row)
}

// fixed is a figure with so many decimals.
func fixed(decimals int, v float64) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

// some is fixed, but "" for 0.
func some(decimals int, v float64) string {
	if v == 0 {
		return ""
	}
	return fixed(decimals, v)
}

// percent is e.g. "85 %", and never "-0 %".
func percent(decimals int, part float64) string {
	scale := math.Pow10(decimals)
	return fixed(decimals, math.Round(100*scale*part)/scale+0) + " %"
}

// keptShown is how many of the guard's reasons a table lists for a policy; the JSON has all.
const keptShown = 6

// printKept prints which of the guard's reasons cost the most waiting, by policy.
func (s *shared) printKept(lines map[string]*experiment.Line) {
	t := s.Table("what the guard's refusals cost", "policy", "reason", "jobs", "waited h")
	for _, name := range experiment.Names() {
		if spec, _ := policy.Named(name); spec.Alone || lines[name] == nil {
			continue // it refuses company itself
		}
		first := name
		for _, k := range lines[name].VetoCosts[:min(keptShown, len(lines[name].VetoCosts))] {
			t.AppendRow(table.Row{first, k.Reason, fixed(0, k.Jobs), fixed(1, k.WaitH)})
			first = ""
		}
	}
	if t.Length() > 0 {
		t.Render()
	}
}

// commonFlags are the flags that replay and experiment have in common.
type commonFlags struct {
	experiment.Options
	objective, json, checkpoint string
}

// add adds all but objective; seeds and window are their defaults.
func (f *commonFlags) add(fl *pflag.FlagSet, seeds, window int) {
	o := &f.Options
	fl.IntVar(&o.Seeds, "seeds", seeds, "trainings or job sets that are compared, each with a seed of its own")
	fl.Uint64Var(&o.Seed, "seed", 1, "the first of them")
	fl.IntVar(&o.M, "window", window, "pending jobs a decision looks at")
	addContract(fl, &o.MaxSlowdown, &o.Grace)
	fl.Func("duration-error", "decisions see each job's own duration, times a factor drawn from 1 ± `PART`; the default "+
		"is what earlier runs foretell", func(text string) error {
		v, err := strconv.ParseFloat(text, 64)
		o.DurationError = &v
		return err
	})
	fl.StringVar(&f.checkpoint, "checkpoint", "", "dqn decides by this `FILE` of slurmbridge lab train")
	fl.StringVar(&f.json, "json", "", "write all figures to `FILE` (- = standard output)")
}

// addContract adds the flags of the contract of jobs that say nothing, which are the
// daemon's settings of the same names.
func addContract(fl *pflag.FlagSet, maxSlowdown, grace *float64) {
	fl.Float64Var(maxSlowdown, "max-slowdown", rlcore.DefaultMaxSlowdown,
		"how much slower a job may run for sharing, as a factor; 0 = no limit")
	fl.Float64Var(grace, "grace", rlcore.DefaultGrace,
		"by what part of its own run time alone a job may end later than plain Slurm would have ended it")
}

// contract is it in words.
func contract(maxSlowdown, grace float64) string {
	slower := "any slowdown is allowed"
	if maxSlowdown > 0 {
		slower = fmt.Sprintf("slowdowns up to %v are allowed", maxSlowdown)
	}
	return fmt.Sprintf("%s, and an end later than plain Slurm's by %v of the time alone", slower, grace)
}

// checkContract refuses what the daemon refuses.
func checkContract(maxSlowdown, grace float64) error {
	if err := config.Check("max_slowdown", maxSlowdown); err != nil {
		return cli.Usage(fmt.Errorf("--max-slowdown %w", err))
	}
	if err := config.Check("grace", grace); err != nil {
		return cli.Usage(fmt.Errorf("--grace %w", err))
	}
	return nil
}
