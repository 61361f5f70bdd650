package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

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
		return fmt.Errorf("can't write %s: %w", file, cause(err))
	}
	_ = f.Close() // nothing was written
	return os.Remove(f.Name())
}

// cause is err without a file's name, which the message has.
func cause(err error) error {
	var where *os.PathError
	if errors.As(err, &where) {
		return where.Err
	}
	return err
}

// writeJSON writes v to a file, to standard output for "-", nowhere for "".
func (s *shared) writeJSON(file string, v any) error {
	switch file {
	case "":
		return nil
	case "-":
		return s.PrintJSON(v)
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil { //nolint:gosec // the user names it
		return fmt.Errorf("writing %s: %w", file, cause(err))
	}
	return nil
}

// column is a column of a table with one value per row.
type column[T any] struct {
	name string
	of   func(T) any
}

// head appends the columns' names.
func head[T any](columns []column[T], before ...any) []any {
	for _, c := range columns {
		before = append(before, c.name)
	}
	return before
}

// row appends what columns show of a value.
func row[T any](columns []column[T], v T, before ...any) []any {
	for _, c := range columns {
		before = append(before, c.of(v))
	}
	return before
}

// fixed is a figure with so many decimals.
func fixed(decimals int, v float64) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

// percent is e.g. "85 %", and never "-0 %".
func percent(part float64) string { return fmt.Sprintf("%.0f %%", math.Round(100*part)+0) }

// shareColumn is the part of the clairvoyant's gain, where there is a clairvoyant.
func shareColumn[T any](clairvoyant bool, of func(T) *experiment.Fared) []column[T] {
	if !clairvoyant {
		return nil
	}
	return []column[T]{{"share", func(x T) any { return percent(of(x).GainShare) }}}
}

// vsBest is a ratio to the best other policy, "" where there is none.
func vsBest(f *experiment.Fared) any {
	if f.VsBest == 0 {
		return ""
	}
	return fixed(3, f.VsBest)
}

// keptShown is how many of the guard's reasons a table lists for a policy; the JSON has all.
const keptShown = 6

// printKept prints which of the guard's reasons cost the most waiting, by policy.
func (s *shared) printKept(r *experiment.ReplayReport, order []string) {
	t := s.Table("what the guard's refusals cost", "policy", "reason", "jobs", "waited h")
	for _, name := range order {
		if spec, _ := policy.Named(name); spec.Alone {
			continue // it refuses company itself
		}
		first := name
		for _, k := range r.Policies[name].Kept[:min(keptShown, len(r.Policies[name].Kept))] {
			t.AppendRow([]any{first, k.Reason, fixed(0, k.Jobs), fixed(1, k.WaitH)})
			first = ""
		}
	}
	if t.Length() > 0 {
		t.Render()
	}
}

// tenths is e.g. "0.4 %".
func tenths(part float64) string { return fmt.Sprintf("%.1f %%", 100*part) }

func average(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}

// addOptions adds the flags that replay and experiment have in common; seeds and window are their defaults.
func addOptions(fl *pflag.FlagSet, o *experiment.Options, seeds, window int, json *string) {
	fl.IntVar(&o.Seeds, "seeds", seeds, "trainings or job sets that are compared, each with a seed of its own")
	fl.Uint64Var(&o.Seed, "seed", 1, "the first of them")
	fl.IntVar(&o.M, "window", window, "pending jobs a decision looks at")
	addContract(fl, &o.MaxSlowdown, &o.Grace)
	fl.BoolVar(&o.KeepLimits, "keep-limits", false,
		"a job is ended at its time limit even if sharing slowed it (extend_limit: no)")
	fl.StringVar(json, "json", "", "write all figures to `FILE` (- = standard output)")
}

// addCheckpoint adds the flag of a network.
func addCheckpoint(fl *pflag.FlagSet, file *string) {
	fl.StringVar(file, "checkpoint", "", "dqn decides by this `FILE` of slurmbridge train")
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
