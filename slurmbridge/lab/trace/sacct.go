package trace

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/replay"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Why a row of accounting is left out.
const (
	noGPU     = "without a GPU"
	noRunTime = "without a run time"
	onMIG     = "on a MIG instance"
	torn      = "with a line break in its name, or cut short"
	unended   = "not ended"
	requeued  = "earlier runs of a requeued job"
)

// ReadSacct reads jobs from what `sacct --parsable2` prints:
//
//	sacct --parsable2 --allusers --starttime=2024-01-01 \
//	      --format=JobID,JobName,User,Submit,Start,End,ElapsedRaw,State,AllocTRES,TimelimitRaw
//
// It takes what is there of JobID or JobIDRaw, JobName, User, Submit (else Eligible, else Start), ElapsedRaw (else
// Elapsed, else End − Start), State, AllocTRES (else ReqTRES), and TimelimitRaw or Timelimit, where UNLIMITED and
// Partition_Limit are no limit. The first three kinds and a run time must be. Times are read as local ones without a
// change of the clock. An application is a job name; characters in it that can't be printed become "?".
//
// Left out are steps, allocations without gres/gpu (or gres/mps or gres/shard), or with an
// instance of a GPU in MIG mode, where a TRES column is there, those that have not ended, of a job
// that was requeued all runs but the last, and rows that are not whole. Order and name are as for ReadJobs.
func ReadSacct(r io.Reader, name string) ([]history.Run, table.Skipped, error) {
	s := sacct{skipped: table.Skipped{}, last: map[string]int{}}
	broken, err := text.ReadSacct(r, name, s.begin, s.read)
	if err != nil {
		return nil, nil, err
	}
	if broken > 0 {
		s.skipped[torn] = broken
	}
	if len(s.jobs) == 0 {
		return nil, nil, table.Nothing(name, s.skipped)
	}
	return inOrder(s.jobs), s.skipped, nil
}

// sacct is the reading of one file.
type sacct struct {
	id, submit, lasts string // columns to take these from
	tres              []string
	jobs              []history.Run
	last              map[string]int // index in jobs by ref
	skipped           table.Skipped
}

// begin chooses the columns.
func (s *sacct) begin(t *text.SacctRow) {
	s.id = t.FirstOf("JobID", "JobIDRaw")
	t.FirstOf("JobName")
	s.submit = t.FirstOf("Submit", "Eligible", "Start")
	s.lasts = t.FirstOf("ElapsedRaw", "Elapsed", "End")
	if s.lasts == "end" {
		t.FirstOf("Start")
	}
	for _, col := range []string{"alloctres", "reqtres"} {
		if t.Has(col) {
			s.tres = append(s.tres, col)
		}
	}
}

// read takes one row.
func (s *sacct) read(t *text.SacctRow) {
	j := history.Run{Ref: t.Name(s.id), User: t.NameOr("user", ""), App: printable(t.Text("jobname"))}
	if t.Err() != nil || strings.Contains(j.Ref, ".") { // a step
		return
	}
	gpus, part := t.GPUs(s.tres...)
	j.WholeGPUs = several(gpus)
	why := ""
	tookS := 0.0
	switch {
	case part == text.Instance:
		why = onMIG
	case len(s.tres) > 0 && gpus == 0 && part != text.Shared:
		why = noGPU
	case !ended(t.Text("state")) || s.lasts == "end" && text.IsNone(t.Text("end")):
		why = unended
	default:
		tookS = s.lasted(t)
		if tookS < table.MinDurationS {
			why = noRunTime
		}
	}
	if why != "" || t.Err() != nil {
		s.skipped[why]++
		return
	}
	j = replay.Run(j, stamp(t, s.submit), tookS, limit(t))
	if i, ok := s.last[j.Ref]; ok {
		s.skipped[requeued]++
		s.jobs[i] = j
		return
	}
	s.last[j.Ref] = len(s.jobs)
	s.jobs = append(s.jobs, j)
}

// lasted returns the run time, s; 0 where it has none.
func (s *sacct) lasted(t *text.SacctRow) float64 {
	v := 0.0
	switch s.lasts {
	case "elapsedraw":
		return t.Number("elapsedraw", 0, table.MaxDurationS)
	case "elapsed":
		v = t.Elapsed("elapsed").Seconds()
	default:
		if text.IsNone(t.Text("start")) {
			return 0 // it was cancelled before it began
		}
		v = stamp(t, "end") - stamp(t, "start")
	}
	if v < 0 || v > table.MaxDurationS {
		t.Fail(s.lasts, fmt.Errorf("%w: a run time of %g s", table.ErrOutOfRange, v))
	}
	return v
}

// limit returns the time limit, s; 0 where there is none.
func limit(t *text.SacctRow) float64 {
	for _, col := range []string{"timelimitraw", "timelimit"} {
		switch t.Text(col) {
		case "", "UNLIMITED", "Partition_Limit":
			continue
		}
		if col == "timelimitraw" {
			const most = 1e7 // minutes, 19 years
			return 60 * t.Number(col, 0, most)
		}
		v := t.Elapsed(col).Seconds()
		if v > table.MaxDurationS {
			t.Fail(col, fmt.Errorf("%w: a time limit of %g s", table.ErrOutOfRange, v))
		}
		return v
	}
	return 0
}

// stamp returns a time as seconds since 1970, if the machine's clock showed UTC: only differences are used.
func stamp(t *text.SacctRow, col string) float64 {
	at := t.Time(col, time.UTC)
	if at.IsZero() {
		t.Fail(col, table.ErrMissing)
		return 0
	}
	return float64(at.Unix())
}

// ended reports whether a job in this state won't use its GPU any longer.
func ended(state string) bool {
	word, _, _ := strings.Cut(state, " ") // CANCELLED by 1000
	switch strings.TrimSuffix(word, "+") {
	case "PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "CONFIGURING", "COMPLETING", "STOPPED":
		return false
	}
	return true
}

// printable returns a job's name, which a user wrote, fit to print.
func printable(s string) string {
	s = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
	if s == "" {
		return "unnamed"
	}
	if len(s) > maxName {
		s = strings.ToValidUTF8(s[:maxName], "")
	}
	return s
}
