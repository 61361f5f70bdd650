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

// userText are the sacct columns with text of users, besides JobName.
var userText = []string{
	"admincomment", "comment", "extra", "failednode", "stderr", "stdin", "stdout",
	"submitline", "systemcomment", "wckey", "workdir",
}

// SacctRow is one row of sacct's output: an allocation or a step. Its getters take column names in lower case.
type SacctRow struct {
	*table.Row
	trailing   bool // --parsable: each line ends with a "|"
	absorbable bool // JobName is the only column with text of users
}

// ReadSacct reads the output of `sacct --parsable2` (or --parsable), with columns in any order. It calls begin for the
// header and do for each row, and stops at the first error, a *table.Error. A JobName that contains "|" is put together
// again if no other column has text of users. Rows that a line break in a name tears apart, or that are cut short, are
// skipped; broken counts them.
func ReadSacct(r io.Reader, name string, begin, do func(*SacctRow)) (broken int, err error) {
	var row *SacctRow
	torn := 0 // fields so far of an incomplete row; 0 = none
	err = table.EachLine(r, name, func(line int, text string) (err error) {
		text = strings.TrimRight(text, "\r")
		switch {
		case strings.TrimSpace(text) == "":
			return nil
		case row == nil:
			row, err = sacctHeader(name, line, text)
			if err != nil {
				return err
			}
			begin(row)
			return row.Err()
		}
		fields, err := row.split(text)
		n := len(fields)
		switch {
		case n >= row.Width() && !row.numbered(fields): // the rest of a torn name that contains "|"
			if torn == 0 {
				broken++
			}
			torn = 0
			return nil
		case n >= row.Width():
			torn = 0
		case torn == 0 || torn+n-1 > row.Width():
			torn = n
			broken++
			return nil
		default: // the rest of a torn row: its first field continues the last one
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

// split cuts a row into fields, and puts a JobName with "|" together again.
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
		return fields, fmt.Errorf(`%d fields, the header has %d: a user's text contains "|"; print no column with text of users but JobName`, len(fields), r.Width())
	}
	i := r.Index("jobname")
	name := strings.Join(fields[i:i+more+1], "|")
	return slices.Concat(fields[:i], []string{name}, fields[i+more+1:]), nil
}

// jobNumber matches the beginning of a job's or step's ID.
var jobNumber = regexp.MustCompile(`^\d+([._+]|$)`)

// numbered reports whether the row's ID columns, if any, have IDs.
func (r *SacctRow) numbered(fields []string) bool {
	for _, col := range []string{"jobid", "jobidraw"} {
		if r.Has(col) && !jobNumber.MatchString(fields[r.Index(col)]) {
			return false
		}
	}
	return true
}

// FirstOf returns the first of the columns that the file has; it must have one.
func (r *SacctRow) FirstOf(columns ...string) string { return r.Row.FirstOf("|", columns...) }

// Part says whether a job's GPUs are whole ones.
type Part int

// The parts of a GPU that accounting distinguishes.
const (
	Whole    Part = iota
	Shared        // gres/mps or gres/shard
	Instance      // of a GPU in MIG mode
)

// maxNumber is the largest number of GPUs that is accepted.
const maxNumber = 1e6

// mig matches GPU types that are MIG instances, such as 1g.5gb or nvidia_a100_1c.3g.20gb.
var mig = regexp.MustCompile(`(^|[^0-9a-z])[0-9]+g\.[0-9]+gb`)

// GPUs returns the GPUs in the first TRES column that isn't empty, e.g.
// "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G": the count of gres/gpu, or else the sum over the types. part is
// Shared or Instance if some of them are parts of a GPU.
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
				err = fmt.Errorf("%w: %.40q is not a number of GPUs", table.ErrOutOfRange, item)
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
				typed += n
				if n > 0 && mig.MatchString(strings.ToLower(typ)) {
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

// Elapsed reads a run time such as 1-02:03:04. It must not be missing.
func (r *SacctRow) Elapsed(col string) time.Duration {
	s := r.Text(col)
	d, ok := ParseDuration([]byte(s))
	switch {
	case s == "":
		r.Fail(col, table.ErrMissing)
	case !ok:
		r.Fail(col, fmt.Errorf("%.40q is not a run time: [days-][hours:]minutes:seconds", s))
	}
	return d
}

// Time reads a time, in loc if it has no zone. The zero time means that it has not come or is unknown.
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
	r.Fail(col, fmt.Errorf("%.40q is not a time like 2024-01-31T23:59:59", s))
	return time.Time{}
}
