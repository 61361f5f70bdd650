// Package trace reads what a replay, a training or a scoring is given as files: jobs (CSV, sacct's output), solo
// profiles, and slowdowns measured in pairs. Package table says what is expected of CSV and of errors.
package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/replay"
)

// errWhat: neither format of jobs.
var errWhat = errors.New("neither CSV (job,submit_s,app,duration_s,user) nor what sacct --parsable2 prints " +
	"(JobID|JobName|…)")

// ReadJobsFile reads jobs from a file in either format, which the first line shows; see ReadJobs and ReadSacct.
func ReadJobsFile(path string, known ...string) ([]history.Run, table.Skipped, error) {
	f, err := open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	br := bufio.NewReader(f)
	start, err := br.Peek(peeked)
	if len(start) == 0 && err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, &table.Error{File: path, Err: fmt.Errorf("read: %w", err)}
	}
	text := strings.TrimLeftFunc(strings.TrimPrefix(string(start), "\ufeff"), unicode.IsSpace)
	first, _, _ := strings.Cut(text, "\n")
	switch {
	case first == "":
		return nil, nil, &table.Error{File: path, Err: table.ErrEmpty}
	case first[0] != '#' && strings.Contains(first, "|"):
		return ReadSacct(br, path)
	case first[0] == '#' || strings.Contains(first, ","): // a comment is CSV's
		jobs, err := ReadJobs(br, path, known...)
		return jobs, nil, err
	}
	return nil, nil, &table.Error{File: path, Line: 1, Err: errWhat}
}

// peeked is how much of a file is read to recognise its format, bytes.
const peeked = 4096

// ReadFile is a reader, such as ReadProfiles, for a file.
func ReadFile[T any](path string, read func(r io.Reader, name string) (T, error)) (all T, err error) {
	f, err := open(path)
	if err != nil {
		return all, err
	}
	defer f.Close()
	return read(f, path)
}

func open(path string) (*os.File, error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		var where *os.PathError
		if errors.As(err, &where) {
			err = where.Err // the file's name is the Error's
		}
		return nil, &table.Error{File: path, Err: fmt.Errorf("open: %w", err)}
	}
	return f, nil
}

// Bounds beyond which a value is taken for a mistake, not for a measurement.
const (
	maxSubmitS = 1e11 // seconds since 1970 in the year 5138
	maxName    = 256  // bytes
	maxGPUs    = 1e6
)

// UnknownDurationS is DurationS of a profile from a file without durations, s: predictions for a constant profile don't
// depend on it. No duration in a file is as short, so HasDuration can distinguish them.
const UnknownDurationS = table.MinDurationS / 10

// coreShare is the fraction of the SMs that are assumed busy while a kernel runs, as rlcore/apps assumes.
const coreShare = 0.85

// ReadProfiles reads profiles as table.ReadProfiles does. app and gpu_util must be there. An empty duration_s becomes
// UnknownDurationS (jobs then need durations of their own; see HasDuration), an empty sm_util 0.85 of gpu_util.
func ReadProfiles(r io.Reader, name string) ([]*rlcore.Profile, error) {
	return table.ReadProfiles(r, name, &table.ProfileRules{
		Columns: []string{"app", "gpu_util"}, Values: []string{"gpu_util"},
		DurationS: UnknownDurationS, CoreShare: coreShare, MinStepMS: 1e-6, Source: name,
	})
}

// HasDuration reports whether the profile's file gave its duration.
func HasDuration(p *rlcore.Profile) bool { return p.DurationS > UnknownDurationS }

// Pair is one measured slowdown.
type Pair = interference.Pair

// Bounds of a slowdown: measured ones fall below 1 by noise, and what is below a
// half is another quantity (throughput, say).
const minSlowdown, maxSlowdown = 0.5, 1000

// ReadPairs reads CSV with the columns victim, aggressor and slowdown: the victim's run time with the aggressor over
// its run time alone, from 0.5 to 1000. In a group of three or more, the columns aggressor2, aggressor3 and so on up
// to aggressor15 name the other members; blank = none. A value below 1 is kept as it was measured. Victim and
// aggressor may be one application. Each measurement of a pair has a row of its own. When known is given, an
// application that isn't among it is a table.ErrUnknownApp. name is the file's name for messages.
func ReadPairs(r io.Reader, name string, known ...string) ([]Pair, error) {
	var pairs []Pair
	err := table.ReadCSV(r, name, []string{"victim", "aggressor", "slowdown"}, func(t *table.Row) {
		p := Pair{
			Victim:    t.OneOf("victim", known),
			Aggressor: t.OneOf("aggressor", known),
			Slowdown:  t.Number("slowdown", minSlowdown, maxSlowdown),
		}
		for k := 2; k <= 15; k++ {
			if col := "aggressor" + strconv.Itoa(k); t.Has(col) && t.Text(col) != "" {
				p.More = append(p.More, t.OneOf(col, known))
			}
		}
		pairs = append(pairs, p)
	})
	if err != nil {
		return nil, err
	}
	return pairs, nil
}

// Teach shows a model co-runs that were measured.
func Teach(m *interference.Model, card *rlcore.GPUSpec, profiles []*rlcore.Profile, seen []Pair) {
	byApp := map[string]*rlcore.Profile{}
	for _, p := range profiles {
		byApp[p.App] = p
	}
	for _, p := range seen {
		m.Observe(card, p.Members(byApp), p.Slowdown, math.NaN(), 1)
	}
}

// ReadJobs reads CSV with the columns job, submit_s (by the file's own clock), app and optionally duration_s (alone),
// user, gpus and limit_s, which may be empty. A job may appear once. When known is given, an application that isn't in
// it is a table.ErrUnknownApp. The jobs come in the order of submission, jobs of one instant in the file's order. name
// is the file's name for messages.
func ReadJobs(r io.Reader, name string, known ...string) ([]history.Run, error) {
	var jobs []history.Run
	seen := map[string]bool{}
	err := table.ReadCSV(r, name, []string{"job", "submit_s", "app"}, func(t *table.Row) {
		j := history.Run{Ref: t.Name("job"), App: t.OneOf("app", known), User: t.NameOr("user", ""), WholeGPUs: gpus(t)}
		submitS := t.Number("submit_s", 0, maxSubmitS)
		tookS := t.NumberOr("duration_s", table.MinDurationS, table.MaxDurationS, 0)
		limitS := t.NumberOr("limit_s", table.MinDurationS, table.MaxDurationS, 0)
		if seen[j.Ref] {
			t.Fail("job", fmt.Errorf("%.40q %w", j.Ref, table.ErrTwice))
		}
		seen[j.Ref] = true
		jobs = append(jobs, replay.Run(j, submitS, tookS, limitS))
	})
	if err != nil {
		return nil, err
	}
	return inOrder(jobs), nil
}

// gpus returns how many whole GPUs a job requested, 0 = one, perhaps shared.
func gpus(r *table.Row) int {
	v := r.NumberOr("gpus", 1, maxGPUs, 0)
	if v != math.Trunc(v) {
		r.Fail("gpus", fmt.Errorf("%w: %.40s is not a whole number", table.ErrOutOfRange, r.Text("gpus")))
	}
	return several(int(v))
}

// several returns Run.WholeGPUs for a number of GPUs: 0 for a single GPU, which a replay may share.
func several(gpus int) int {
	if gpus == 1 {
		return 0
	}
	return gpus
}

func inOrder(jobs []history.Run) []history.Run {
	slices.SortStableFunc(jobs, func(a, b history.Run) int { return a.Ready.Compare(b.Ready) })
	return jobs
}
