package trace

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Why a row of accounting is left out.
const (
	noGPU    = "without a GPU"
	unended  = "not ended"
	requeued = "earlier runs of a requeued job"
)

// freeText are sacct's fields that users write, beside JobName.
var freeText = []string{
	"admincomment", "comment", "extra", "failednode", "stderr", "stdin", "stdout",
	"submitline", "systemcomment", "wckey", "workdir",
}

// ReadSacct reads what `sacct --parsable2` (or --parsable) prints, with its header:
//
//	sacct --parsable2 --allusers --starttime=2024-01-01 \
//	      --format=JobID,JobName,User,Submit,Start,End,ElapsedRaw,State,AllocTRES
//
// It takes what is there of JobID or JobIDRaw, JobName, User, Submit (else
// Eligible, else Start), ElapsedRaw (else Elapsed, else End − Start), State, and
// AllocTRES (else ReqTRES). The first three kinds and a run time must be. Times are
// read as local ones without a change of the clock; SubmitS counts from the
// earliest. An application is a job name; characters in it that can't be printed
// become "?".
//
// Steps are no jobs. Left out are allocations without gres/gpu (or gres/mps or
// gres/shard) where a TRES column is there, those that have not ended, and of a
// job that was requeued all runs but the last. JobName is whatever a user wrote:
// where it holds a "|" and no other such column is asked for, it is put together
// again. Order, known and name are as for ReadJobs.
func ReadSacct(r io.Reader, name string, known ...string) ([]Job, Skipped, error) {
	s := sacct{known: known, skipped: Skipped{}, last: map[string]int{}}
	err := eachLine(r, name, func(line int, text string) error {
		switch {
		case strings.TrimSpace(text) == "":
			return nil
		case s.row.head == nil:
			return s.begin(name, line, text)
		}
		return s.read(line, text)
	})
	if err != nil {
		return nil, nil, err
	}
	if s.row.head == nil {
		return nil, nil, &Error{File: name, Err: ErrEmpty}
	}
	if len(s.jobs) == 0 {
		return nil, nil, nothing(name, s.skipped)
	}
	inOrder(s.jobs)
	for first, i := s.jobs[0].SubmitS, 0; i < len(s.jobs); i++ {
		s.jobs[i].SubmitS -= first
	}
	return s.jobs, s.skipped, nil
}

// sacct is the reading of one file. row.head is nil until the header was read.
type sacct struct {
	row                  row
	id, submit, lasts    string // columns to take these from
	tres                 []string
	known                []string
	jobs                 []Job
	last                 map[string]int // index in jobs by ID
	skipped              Skipped
	trailing, absorbable bool
}

// begin reads the header.
func (s *sacct) begin(name string, line int, text string) error {
	text = strings.TrimRight(text, "\r")
	s.trailing = strings.HasSuffix(text, "|")
	head, at, err := header(strings.Split(strings.TrimSuffix(text, "|"), "|"))
	if err != nil {
		return &Error{File: name, Line: line, Err: err}
	}
	s.row = row{file: name, head: head, at: at}
	first := func(names ...string) string {
		for _, n := range names {
			if _, ok := at[strings.ToLower(n)]; ok {
				return strings.ToLower(n)
			}
		}
		if err == nil {
			err = &Error{File: name, Line: line, Column: strings.Join(names, " or "), Err: fmt.Errorf("%w; it has %.200s", ErrNoColumn, strings.Join(head, "|"))}
		}
		return ""
	}
	s.id = first("JobID", "JobIDRaw")
	first("JobName")
	s.submit = first("Submit", "Eligible", "Start")
	s.lasts = first("ElapsedRaw", "Elapsed", "End")
	if s.lasts == "end" {
		first("Start")
	}
	for _, col := range []string{"alloctres", "reqtres"} {
		if _, ok := at[col]; ok {
			s.tres = append(s.tres, col)
		}
	}
	s.absorbable = true
	for _, col := range freeText {
		_, there := at[col]
		s.absorbable = s.absorbable && !there
	}
	return err
}

// fields splits a row; JobName gets back what a "|" in it tore off.
func (s *sacct) fields(text string) ([]string, error) {
	text = strings.TrimRight(text, "\r")
	if s.trailing {
		text = strings.TrimSuffix(text, "|")
	}
	rec := strings.Split(text, "|")
	more := len(rec) - len(s.row.head)
	switch {
	case more == 0:
		return rec, nil
	case more < 0:
		return nil, fmt.Errorf("%d fields, the header has %d; was the file cut short, or is a line break in a job's name?", len(rec), len(s.row.head))
	case !s.absorbable:
		return nil, fmt.Errorf(`%d fields, the header has %d: a "|" in a text that a user wrote; ask sacct for JobName alone of such columns`, len(rec), len(s.row.head))
	}
	i := s.row.at["jobname"]
	whole := strings.Join(rec[i:i+more+1], "|")
	return append(append(rec[:i:i], whole), rec[i+more+1:]...), nil
}

// read takes one row.
func (s *sacct) read(line int, text string) error {
	t := &s.row
	t.line = func(int) int { return line }
	var err error
	if t.rec, err = s.fields(text); err != nil {
		return &Error{File: t.file, Line: line, Err: err}
	}
	j := Job{ID: t.name(s.id), User: t.nameOr("user", ""), App: printable(t.text("jobname"))}
	if t.err != nil || strings.Contains(j.ID, ".") { // a step
		return t.err
	}
	if j.GPUs = t.gpus(s.tres); t.err != nil {
		return t.err
	}
	if len(s.tres) > 0 && j.GPUs == 0 {
		s.skipped[noGPU]++
		return nil
	}
	if !ended(t.text("state")) || s.lasts == "end" && unknownTime(t.text("end")) {
		s.skipped[unended]++
		return nil
	}
	if j.DurationS = t.lasted(s.lasts); t.err == nil && j.DurationS < minDurationS {
		s.skipped[noRunTime]++
		return nil
	}
	j.SubmitS = t.stamp(s.submit)
	t.mustKnow("jobname", j.App, s.known)
	if i, ok := s.last[j.ID]; ok {
		s.skipped[requeued]++
		s.jobs[i] = j
		return t.err
	}
	s.last[j.ID] = len(s.jobs)
	s.jobs = append(s.jobs, j)
	return t.err
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

// printable returns a job's name fit to print: it is what a user wrote.
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
