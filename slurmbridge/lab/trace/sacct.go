package trace

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
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

// ReadSacct reads jobs from what `sacct --parsable2` (or --parsable) prints:
//
//	sacct --parsable2 --allusers --starttime=2024-01-01 \
//	      --format=JobID,JobName,User,Submit,ElapsedRaw,State,AllocTRES,TimelimitRaw
//
// Columns come in any order and others are ignored; User and TimelimitRaw may be missing. Times are read as local ones
// without a change of the clock; SubmitS counts from the earliest. An application is a job name; characters in it that
// can't be printed become "?".
//
// Left out are steps, allocations without gres/gpu (or gres/mps or gres/shard), or with an instance of a GPU in MIG
// mode, those that have not ended, of a job that was requeued all runs but the last, and rows that a line break in a
// name tears apart, or that were cut short. Order and name are as for ReadJobs; jobs whose name isn't among known, if
// there are any, are Unknown: users give jobs all sorts of names.
func ReadSacct(r io.Reader, name string, known ...string) ([]Job, table.Skipped, error) {
	s := sacct{known: known, skipped: table.Skipped{}, last: map[string]int{}}
	err := table.EachLine(r, name, func(line int, text string) (err error) {
		switch text = strings.TrimRight(text, "\r"); {
		case strings.TrimSpace(text) == "":
			return nil
		case s.row == nil:
			return s.header(name, line, text)
		}
		fields, whole, err := s.split(text)
		if !whole {
			return nil
		}
		if s.row.Set(line, fields); err != nil {
			s.row.Fail("", err)
		} else {
			s.read()
		}
		return s.row.Err()
	})
	switch {
	case err != nil:
		return nil, nil, err
	case s.row == nil:
		return nil, nil, &table.Error{File: name, Err: table.ErrEmpty}
	case len(s.jobs) == 0:
		return nil, nil, table.Nothing(name, s.skipped)
	}
	inOrder(s.jobs)
	for first, i := s.jobs[0].SubmitS, 0; i < len(s.jobs); i++ {
		s.jobs[i].SubmitS -= first
	}
	return s.jobs, s.skipped, nil
}

// sacct is the reading of one file.
type sacct struct {
	row        *table.Row
	trailing   bool // --parsable ends each line with a bar
	absorbable bool // JobName is the only text that users write
	torn       int  // fields so far of a row that isn't complete; 0 = there is none
	known      []string
	jobs       []Job
	last       map[string]int // index in jobs by ID
	skipped    table.Skipped
}

// userText are sacct's fields that users write, besides JobName.
var userText = []string{
	"admincomment", "comment", "extra", "failednode", "stderr", "stdin", "stdout",
	"submitline", "systemcomment", "wckey", "workdir",
}

func (s *sacct) header(name string, line int, text string) (err error) {
	columns, trailing := strings.CutSuffix(text, "|")
	if s.row, err = table.NewRow(name, line, strings.Split(columns, "|")); err != nil {
		return err
	}
	s.trailing, s.absorbable = trailing, !slices.ContainsFunc(userText, s.row.Has)
	return s.row.Need("|", "JobID", "JobName", "Submit", "ElapsedRaw", "State", "AllocTRES")
}

// jobNumber is how a job's or a step's ID begins.
var jobNumber = regexp.MustCompile(`^\d+([._+]|$)`)

// split cuts a line into fields. JobName is a user's text: it gets back what a "|" in it tore off. whole is false of a
// part of a row that a line break tore apart; the row is counted once.
func (s *sacct) split(text string) (fields []string, whole bool, err error) {
	if s.trailing {
		text = strings.TrimSuffix(text, "|")
	}
	fields = strings.Split(text, "|")
	n, width := len(fields), s.row.Width()
	if more := n - width; more > 0 && s.absorbable {
		i := s.row.Index("jobname")
		jobName := strings.Join(fields[i:i+more+1], "|")
		fields = slices.Concat(fields[:i], []string{jobName}, fields[i+more+1:])
	} else if more > 0 {
		err = fmt.Errorf(`%d fields, the header has %d: a "|" in a text that a user wrote; ask sacct for JobName alone of `+
			`such columns`, n, width)
	}
	was := s.torn
	switch {
	case n >= width:
		s.torn = 0
		whole = jobNumber.MatchString(fields[s.row.Index("jobid")]) // else it is the rest of a name that has bars as well
	case was == 0 || was+n-1 > width:
		s.torn, was = n, 0
	default: // the line break is within a field
		s.torn = (was + n - 1) % width
	}
	if !whole && was == 0 {
		s.skipped[torn]++
	}
	return fields, whole, err
}

// read takes one row.
func (s *sacct) read() {
	t := s.row
	j := Job{ID: t.Name("jobid"), User: t.NameOr("user", ""), App: printable(t.Text("jobname"))}
	if t.Err() != nil || strings.Contains(j.ID, ".") { // a step
		return
	}
	var mig bool
	j.GPUs, mig = gpus(t)
	why := ""
	switch {
	case mig:
		why = onMIG
	case j.GPUs == 0:
		why = noGPU
	case !ended(t.Text("state")):
		why = unended
	default:
		if j.DurationS = t.Number("elapsedraw", 0, table.MaxDurationS); j.DurationS < table.MinDurationS {
			why = noRunTime
		}
	}
	if why != "" || t.Err() != nil {
		s.skipped[why]++
		return
	}
	j.SubmitS, j.LimitS = submitted(t), limit(t)
	j.Unknown = len(s.known) > 0 && !slices.Contains(s.known, j.App)
	if i, ok := s.last[j.ID]; ok {
		s.skipped[requeued]++
		s.jobs[i] = j
		return
	}
	s.last[j.ID] = len(s.jobs)
	s.jobs = append(s.jobs, j)
}

// instance is a type of GPU that is an instance of one in MIG mode, such as 1g.5gb or nvidia_a100_1c.3g.20gb.
var instance = regexp.MustCompile(`(^|[^0-9a-z])[0-9]+g\.[0-9]+gb`)

// gpus returns the GPUs of e.g. "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G": the count over all types where it
// is there, else the sum over the types, and 1 for parts of one (gres/mps, gres/shard). mig: there is an instance of a
// GPU in MIG mode.
func gpus(t *table.Row) (count int, mig bool) {
	var all, typed, shared float64
	for item := range strings.SplitSeq(t.Text("alloctres"), ",") {
		what, number, _ := strings.Cut(item, "=")
		kind, typ, isTyped := strings.Cut(what, ":")
		if kind != "gres/gpu" && kind != "gres/mps" && kind != "gres/shard" {
			continue
		}
		n, err := table.ParseNumber(number)
		if err == nil && (n != math.Trunc(n) || n < 0 || n > maxGPUs) {
			err = fmt.Errorf("%w: %.40q is no number of GPUs", table.ErrOutOfRange, item)
		}
		switch {
		case err != nil:
			t.Fail("alloctres", err)
			return 0, false
		case kind != "gres/gpu":
			shared = max(shared, min(n, 1))
		case isTyped:
			typed += n
			mig = mig || n > 0 && instance.MatchString(strings.ToLower(typ))
		default:
			all = n
		}
	}
	if all == 0 {
		all = typed
	}
	return int(max(all, shared)), mig
}

// limit returns the time limit, s; 0 where there is none.
func limit(t *table.Row) float64 {
	switch t.Text("timelimitraw") {
	case "UNLIMITED", "Partition_Limit":
		return 0
	}
	const most = 1e7 // minutes, 19 years
	return 60 * t.NumberOr("timelimitraw", 0, most, 0)
}

// submitted returns a time as seconds since 1970, if the machine's clock showed UTC: only differences are used.
func submitted(t *table.Row) float64 {
	at, err := time.Parse("2006-01-02T15:04:05", t.Text("submit"))
	if s := float64(at.Unix()); err == nil && s >= 0 {
		return s
	}
	t.Fail("submit", fmt.Errorf("%.40q is no time like 2024-01-31T23:59:59; unset SLURM_TIME_FORMAT for sacct",
		t.Text("submit")))
	return 0
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
