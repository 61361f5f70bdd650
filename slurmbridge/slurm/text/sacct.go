package text

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// userText are sacct's fields that users write, besides JobName.
var userText = []string{
	"admincomment", "comment", "extra", "failednode", "stderr", "stdin", "stdout",
	"submitline", "systemcomment", "wckey", "workdir",
}

// SacctRow is one row of what sacct prints: an allocation, or a step of one. Its getters name columns in lower case.
type SacctRow struct {
	*table.Row
	trailing   bool // --parsable ends each line with a bar
	absorbable bool // JobName is the only text that users write
}

// ReadSacct calls do for each row of what `sacct --parsable2` (or --parsable) prints, and begin for its header, with
// columns in any order. It stops at the first error. JobName is a user's text: if it contains a "|" and the file has no
// other such column, it is put together again. A row that a line break in a name tears apart, or that was cut short, is
// left out; broken counts such rows. Errors are a *table.Error.
func ReadSacct(r io.Reader, name string, begin, do func(*SacctRow)) (broken int, err error) {
	var row *SacctRow
	torn := 0 // fields so far of a row that isn't complete; 0 = there is none
	err = table.EachLine(r, name, func(line int, text string) (err error) {
		text = strings.TrimRight(text, "\r")
		switch {
		case strings.TrimSpace(text) == "":
			return nil
		case row == nil:
			if row, err = sacctHeader(name, line, text); err != nil {
				return err
			}
			begin(row)
			return row.Err()
		}
		fields, err := row.split(text)
		switch n := len(fields); {
		case n >= row.Width() && !row.numbered(fields): // the rest of a name that has bars as well
			if torn == 0 {
				broken++
			}
			torn = 0
			return nil
		case n >= row.Width():
			torn = 0
		case torn == 0 || torn+n-1 > row.Width():
			torn, broken = n, broken+1
			return nil
		default: // the line break is within a field
			torn = (torn + n - 1) % row.Width()
			return nil
		}
		if row.Set(line, fields); err != nil {
			row.Fail("", err)
			return row.Err()
		}
		do(row)
		return row.Err()
	})
	if err == nil && row == nil {
		err = &table.Error{File: name, Err: table.ErrEmpty}
	}
	return broken, err
}

func sacctHeader(name string, line int, text string) (*SacctRow, error) {
	columns, trailing := strings.CutSuffix(text, "|")
	row, err := table.NewRow(name, line, strings.Split(columns, "|"))
	if err != nil {
		return nil, err
	}
	return &SacctRow{Row: row, trailing: trailing, absorbable: row.Has("jobname") &&
		!slices.ContainsFunc(userText, row.Has)}, nil
}

// split cuts a row into fields; JobName gets back what a "|" in it tore off.
func (r *SacctRow) split(text string) ([]string, error) {
	if r.trailing {
		text = strings.TrimSuffix(text, "|")
	}
	fields := strings.Split(text, "|")
	more := len(fields) - r.Width()
	switch {
	case more <= 0:
		return fields, nil
	case !r.absorbable:
		return fields, fmt.Errorf(`%d fields, the header has %d: a "|" in a text that a user wrote; ask sacct for JobName alone of such columns`, len(fields), r.Width())
	}
	i := r.Index("jobname")
	name := strings.Join(fields[i:i+more+1], "|")
	return slices.Concat(fields[:i], []string{name}, fields[i+more+1:]), nil
}

// jobNumber is how a job's or a step's ID begins.
var jobNumber = regexp.MustCompile(`^\d+([._+]|$)`)

// numbered reports whether a row begins with a job's ID, as far as the columns can say.
func (r *SacctRow) numbered(fields []string) bool {
	for _, col := range []string{"jobid", "jobidraw"} {
		if r.Has(col) && !jobNumber.MatchString(fields[r.Index(col)]) {
			return false
		}
	}
	return true
}

// FirstOf returns the first of the columns that the file has; one must be there.
func (r *SacctRow) FirstOf(columns ...string) string { return r.Row.FirstOf("|", columns...) }

// Part says whether a job's GPUs are whole ones.
type Part int

// The parts of a GPU that accounting knows.
const (
	Whole    Part = iota
	Shared        // gres/mps or gres/shard
	Instance      // of a GPU in MIG mode
)

// maxNumber is the largest number of GPUs that is taken.
const maxNumber = 1e6

// mig is a type of GPU that is an instance of one in MIG mode, such as 1g.5gb or nvidia_a100_1c.3g.20gb.
var mig = regexp.MustCompile(`(^|[^0-9a-z])[0-9]+g\.[0-9]+gb`)

// GPUs returns the GPUs in the first of the TRES columns that isn't empty, e.g.
// "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G": the count over all types where it is there, else the sum over
// the types. part: some are parts of a GPU (gres/mps, gres/shard, an instance in MIG mode).
func (r *SacctRow) GPUs(columns ...string) (count int, part Part) {
	for _, col := range columns {
		tres := r.Text(col)
		if tres == "" {
			continue
		}
		all, typed := 0.0, 0.0
		for item := range strings.SplitSeq(tres, ",") {
			what, number, _ := strings.Cut(item, "=")
			kind, typ, isTyped := strings.Cut(what, ":")
			if kind != "gres/gpu" && kind != "gres/mps" && kind != "gres/shard" {
				continue
			}
			n, err := table.ParseNumber(number)
			if err == nil && (n != math.Trunc(n) || n < 0 || n > maxNumber) {
				err = fmt.Errorf("%w: %.40q is no number of GPUs", table.ErrOutOfRange, item)
			}
			switch {
			case err != nil:
				r.Fail(col, err)
				return 0, Whole
			case kind != "gres/gpu":
				if n > 0 && part == Whole {
					part = Shared
				}
			case isTyped:
				if typed += n; n > 0 && mig.MatchString(strings.ToLower(typ)) {
					part = Instance
				}
			default:
				all = n
			}
		}
		if all == 0 {
			all = typed
		}
		return int(all), part
	}
	return 0, Whole
}

// Elapsed reads a run time such as 1-02:03:04, which must be there.
func (r *SacctRow) Elapsed(col string) time.Duration {
	s := r.Text(col)
	d, ok := ParseDuration([]byte(s))
	switch {
	case s == "":
		r.Fail(col, table.ErrMissing)
	case !ok:
		r.Fail(col, fmt.Errorf("%.40q is no run time: [days-][hours:]minutes:seconds", s))
	}
	return d
}

// Time reads a time, at loc where it has no zone. The zero time is one that has not come, or is not known.
func (r *SacctRow) Time(col string, loc *time.Location) time.Time {
	s := r.Text(col)
	if IsNone(s) {
		return time.Time{}
	}
	const last = 1e11 // the year 5138
	if n, ok := digits(s); ok && n < last {
		return time.Unix(n, 0) // SLURM_TIME_FORMAT=%s
	}
	for _, layout := range []string{stamp, stamp + "-0700", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, s, loc); err == nil && t.Unix() >= 0 && t.Unix() < last {
			return t
		}
	}
	r.Fail(col, fmt.Errorf("%.40q is no time like 2024-01-31T23:59:59", s))
	return time.Time{}
}
