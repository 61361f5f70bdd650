package profimport

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore/lab/trace"
)

// Job is one allocation that accounting knows, with what its steps used of a GPU.
type Job struct {
	ID, RawID  string // "120_4" and "124"; alike for what is no array's task
	User, Name string
	Nodes      string // a Slurm host list
	State      string
	Start, End time.Time
	GPUs       int
	Shared     bool // it held a part of a GPU
	// GPU is the fraction of time that a kernel ran, 0..1, MemMiB the most memory held
	// at once, MiB; -1 = not recorded.
	GPU, MemMiB float64
}

// SacctFormat is what sacct is to be asked for.
const SacctFormat = "JobID,JobIDRaw,JobName,User,State,Start,End,NodeList,NTasks,AllocTRES,TRESUsageInAve,TRESUsageInMax"

// What can't be true, and so is a figure that Slurm couldn't get: it prints its
// "infinite" as a number near 2^64.
const mostMiB = 1e7

// maxLine is the longest line that is read, bytes.
const maxLine = 1 << 20

// ReadSacct reads what `sacct --parsable2 --format=`+SacctFormat prints, with its
// header; columns may stand in any order. Needed are JobIDRaw or JobID, JobName,
// User, State, Start, End and AllocTRES; NTasks where TRESUsageInMax is. Times without
// a zone are at loc. Errors are a *trace.Error.
//
// Slurm samples what each task uses (JobAcctGatherFrequency, 30 s). TRESUsageInMax is
// the largest sample of any task, TRESUsageInAve the last sample's mean over tasks
// (jag_common_poll_data in Slurm's common_jag.c): so MemMiB is the maximum times the
// tasks, added up over steps that ran at one time, and GPU is the last sample's, or the
// largest where there is no other, by each step's part of the run. Two zeros are what
// cards print that can't tell, and count as not recorded.
func ReadSacct(r io.Reader, name string, loc *time.Location) ([]Job, error) {
	s := sacct{name: name, loc: loc, jobs: map[string]*account{}}
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	for sc.Scan() {
		s.line++
		text := strings.TrimRight(sc.Text(), "\r")
		if s.line == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		if strings.TrimSpace(text) == "" {
			continue
		}
		var err error
		if s.at == nil {
			err = s.header(text)
		} else {
			err = s.row(text)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := sc.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = trace.ErrLongLine
		}
		return nil, &trace.Error{File: name, Line: s.line + 1, Err: err}
	}
	switch {
	case s.at == nil:
		return nil, &trace.Error{File: name, Err: trace.ErrEmpty}
	case len(s.order) == 0:
		return nil, &trace.Error{File: name, Err: trace.ErrNoRows}
	}
	out := make([]Job, 0, len(s.order))
	for _, id := range s.order {
		if a := s.jobs[id]; a.seen {
			a.total()
			out = append(out, a.Job)
		}
	}
	return out, nil
}

// account is a job with its steps.
type account struct {
	Job
	seen  bool // its own row, not only steps'
	steps []step
}

type step struct {
	start, end time.Time
	gpu, mib   float64 // -1 = not recorded
}

type sacct struct {
	name     string
	loc      *time.Location
	line     int
	head     []string
	at       map[string]int
	trailing bool
	rec      []string
	jobs     map[string]*account
	order    []string
	err      error
}

func (s *sacct) fail(column string, err error) {
	if s.err == nil {
		s.err = &trace.Error{File: s.name, Line: s.line, Column: column, Err: err}
	}
}

func (s *sacct) header(text string) error {
	s.trailing = strings.HasSuffix(text, "|")
	s.head = strings.Split(strings.TrimSuffix(text, "|"), "|")
	s.at = map[string]int{}
	for i, h := range s.head {
		key := strings.ToLower(strings.TrimSpace(h))
		if _, twice := s.at[key]; twice {
			s.fail(h, trace.ErrTwice)
		}
		s.at[key] = i
	}
	need := func(columns ...string) {
		for _, c := range columns {
			if _, ok := s.at[strings.ToLower(c)]; ok {
				return
			}
		}
		s.fail(strings.Join(columns, " or "), fmt.Errorf("%w; ask sacct for --parsable2 --format=%s", trace.ErrNoColumn, SacctFormat))
	}
	need("JobIDRaw", "JobID")
	for _, c := range []string{"JobName", "User", "State", "Start", "End", "AllocTRES"} {
		need(c)
	}
	if _, ok := s.at["tresusageinmax"]; ok {
		need("NTasks")
	}
	return s.err
}

// text returns a column's field, "" where there is no such column.
func (s *sacct) text(column string) string {
	if i, ok := s.at[strings.ToLower(column)]; ok {
		return strings.TrimSpace(s.rec[i])
	}
	return ""
}

func (s *sacct) row(text string) error {
	if s.trailing {
		text = strings.TrimSuffix(text, "|")
	}
	s.rec = strings.Split(text, "|")
	// JobName is whatever its user wrote.
	if more, i := len(s.rec)-len(s.head), s.at["jobname"]; more > 0 {
		whole := strings.Join(s.rec[i:i+more+1], "|")
		s.rec = slices.Concat(s.rec[:i], []string{whole}, s.rec[i+more+1:])
	} else if more < 0 {
		return &trace.Error{File: s.name, Line: s.line, Err: fmt.Errorf("%d fields, the header has %d", len(s.rec), len(s.head))}
	}
	raw, id := s.text("JobIDRaw"), s.text("JobID")
	raw, id = cmp.Or(raw, id), cmp.Or(id, raw)
	number, stepName, isStep := strings.Cut(raw, ".")
	if number == "" || strings.Trim(number, "0123456789_+") != "" {
		s.fail("JobIDRaw", fmt.Errorf("%.40q is no job's number", raw))
		return s.err
	}
	if len(s.jobs) > 1<<20 {
		return &trace.Error{File: s.name, Line: s.line, Err: errors.New("more than a million jobs; ask sacct for fewer days")}
	}
	a := s.jobs[number]
	if a == nil {
		a = &account{}
		s.jobs[number] = a
		s.order = append(s.order, number)
	}
	start, end := s.time("Start"), s.time("End")
	if isStep {
		if stepName != "extern" {
			a.steps = append(a.steps, s.step(start, end, stepName == "batch"))
		}
		return s.err
	}
	// A requeued job has a row for each of its runs: the last counts.
	a.seen, a.steps = true, nil
	a.Job = Job{
		ID: id, RawID: number, User: s.text("User"), Name: s.text("JobName"), Nodes: s.text("NodeList"),
		State: s.text("State"), Start: start, End: end,
	}
	a.GPUs, a.Shared = s.gpus(s.text("AllocTRES"))
	return s.err
}

// gpus returns how many GPUs an allocation has, and whether it is a part of one.
func (s *sacct) gpus(tres string) (count int, shared bool) {
	typed := 0
	for item := range strings.SplitSeq(tres, ",") {
		what, number, _ := strings.Cut(item, "=")
		kind, _, isTyped := strings.Cut(what, ":")
		switch kind {
		case "gres/mps", "gres/shard":
			shared = true
		case "gres/gpu":
			n, err := strconv.Atoi(number)
			if err != nil || n < 0 || n > 1e6 {
				s.fail("AllocTRES", fmt.Errorf("%.40q is no number of GPUs", item))
				return 0, false
			}
			if isTyped {
				typed += n
			} else {
				count = n
			}
		}
	}
	return max(count, typed), shared
}

// step reads what a step used; a batch script is one task.
func (s *sacct) step(start, end time.Time, batch bool) step {
	tasks := 1.0
	if v := s.text("NTasks"); v != "" && !batch {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil {
			s.fail("NTasks", fmt.Errorf("%.40q %w", v, trace.ErrNotNumber))
		}
		tasks = float64(max(n, 1))
	}
	most, last := s.tres("TRESUsageInMax"), s.tres("TRESUsageInAve")
	st := step{start: start, end: end, gpu: -1, mib: -1}
	if mib := max(most.mib, last.mib) * tasks; mib > 0 && mib <= mostMiB {
		st.mib = mib
	}
	if util := cmp.Or(max(last.util, 0), max(most.util, 0)); util > 0 && st.mib > 0 {
		st.gpu = min(util*tasks/100, 1)
	} else if st.mib > 0 && (last.util == 0 || most.util == 0) {
		st.gpu = 0
	}
	return st
}

// usage is what a TRES column says; -1 = nothing.
type usage struct{ util, mib float64 }

func (s *sacct) tres(column string) usage {
	u := usage{-1, -1}
	for item := range strings.SplitSeq(s.text(column), ",") {
		what, value, _ := strings.Cut(item, "=")
		switch what {
		case "gres/gpuutil":
			v, err := strconv.ParseFloat(value, 64)
			if err != nil || math.IsNaN(v) || v < 0 {
				s.fail(column, fmt.Errorf("%.60q: %w", item, trace.ErrNotNumber))
			} else if v <= 1e6 { // else it is Slurm's "infinite"
				u.util = v
			}
		case "gres/gpumem":
			v, err := sizeOf(value)
			if err != nil {
				s.fail(column, fmt.Errorf("%.60q: %w", item, err))
			} else if v/(1<<20) <= mostMiB {
				u.mib = v / (1 << 20)
			}
		}
	}
	return u
}

// sizeOf reads 40777023488 or 38888M: Slurm's units are powers of 1024.
func sizeOf(s string) (float64, error) {
	unit := 1.0
	if s != "" {
		if i := strings.IndexByte("KMGTPE", s[len(s)-1]); i >= 0 {
			unit = math.Pow(1024, float64(i+1))
			s = s[:len(s)-1]
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || v < 0 {
		return 0, trace.ErrNotNumber
	}
	return v * unit, nil
}

// time reads a time; the zero time is one that wasn't yet.
func (s *sacct) time(column string) time.Time {
	v := s.text(column)
	switch v {
	case "", "Unknown", "None", "N/A":
		return time.Time{}
	}
	if n, err := strconv.ParseInt(v, 10, 64); err == nil && n > 0 && n < 1e11 {
		return time.Unix(n, 0) // SLURM_TIME_FORMAT=%s
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04:05-0700", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, v, s.loc); err == nil && t.Year() > 1970 && t.Year() < 5000 {
			return t
		}
	}
	s.fail(column, fmt.Errorf("%.40q is no time like 2024-01-31T23:59:59", v))
	return time.Time{}
}

// total adds the steps up.
func (a *account) total() {
	a.GPU, a.MemMiB = -1, -1
	type event struct {
		at  time.Time
		mib float64
	}
	var events []event
	for _, st := range a.steps {
		if st.mib < 0 || st.start.IsZero() {
			continue
		}
		end := st.end
		if end.IsZero() {
			end = a.End
		}
		// What ends in the second in which the next begins may still have been there.
		events = append(events, event{st.start, st.mib}, event{end.Add(time.Second), -st.mib})
		if length := a.End.Sub(a.Start).Seconds(); st.gpu >= 0 && length > 0 {
			a.GPU = min(max(a.GPU, 0)+st.gpu*max(end.Sub(st.start).Seconds(), 0)/length, 1)
		}
	}
	slices.SortStableFunc(events, func(x, y event) int { return x.at.Compare(y.at) })
	held := 0.0
	for _, e := range events {
		held += e.mib
		a.MemMiB = max(a.MemMiB, held)
	}
}
