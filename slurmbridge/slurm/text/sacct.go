package text

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// userText are sacct's fields that users write, besides JobName.
var userText = []string{
	"admincomment", "comment", "extra", "failednode", "stderr", "stdin", "stdout",
	"submitline", "systemcomment", "wckey", "workdir",
}

// SacctRow is one row of what sacct prints: an allocation, or a step of one. Its getters
// name columns in lower case.
type SacctRow struct {
	*table.Row
	trailing   bool // --parsable ends each line with a bar
	absorbable bool // JobName is the only text that users write
}

// ReadSacct calls do for each row of what `sacct --parsable2` (or --parsable) prints, and begin for
// its header, with columns in any order. It stops at the first error. JobName is a user's text: if
// it contains a "|" and the file has no other such column, it is put together again. Errors are a
// *table.Error.
func ReadSacct(r io.Reader, name string, begin, do func(*SacctRow)) error {
	var row *SacctRow
	err := table.EachLine(r, name, func(line int, text string) (err error) {
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
		if row.Set(line, fields); err != nil {
			row.Fail("", err)
			return row.Err()
		}
		do(row)
		return row.Err()
	})
	if err == nil && row == nil {
		return &table.Error{File: name, Err: table.ErrEmpty}
	}
	return err
}

func sacctHeader(name string, line int, text string) (*SacctRow, error) {
	columns, trailing := strings.CutSuffix(text, "|")
	row, err := table.NewRow(name, line, strings.Split(columns, "|"))
	if err != nil {
		return nil, err
	}
	return &SacctRow{Row: row, trailing: trailing, absorbable: row.Has("jobname") && !slices.ContainsFunc(userText, row.Has)}, nil
}

// split cuts a row into fields; JobName gets back what a "|" in it tore off.
func (r *SacctRow) split(text string) ([]string, error) {
	if r.trailing {
		text = strings.TrimSuffix(text, "|")
	}
	fields := strings.Split(text, "|")
	more := len(fields) - r.Width()
	switch {
	case more == 0:
		return fields, nil
	case more < 0:
		return nil, fmt.Errorf("%d fields, the header has %d; was the file cut short, or is a line break in a job's name?", len(fields), r.Width())
	case !r.absorbable:
		return nil, fmt.Errorf(`%d fields, the header has %d: a "|" in a text that a user wrote; ask sacct for JobName alone of such columns`, len(fields), r.Width())
	}
	i := r.Index("jobname")
	name := strings.Join(fields[i:i+more+1], "|")
	return slices.Concat(fields[:i], []string{name}, fields[i+more+1:]), nil
}

// FirstOf returns the first of the columns that the file has; one must be there.
func (r *SacctRow) FirstOf(columns ...string) string { return r.Row.FirstOf("|", columns...) }

// maxNumber is the largest number of GPUs that is taken.
const maxNumber = 1e6

// GPUs returns the GPUs in the first of the TRES columns that isn't empty, e.g.
// "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G": the count over all types where
// it is there, else the sum over the types. shared: it holds a part of a GPU (gres/mps,
// gres/shard).
func (r *SacctRow) GPUs(columns ...string) (count int, shared bool) {
	for _, col := range columns {
		tres := r.Text(col)
		if tres == "" {
			continue
		}
		all, typed := 0.0, 0.0
		for item := range strings.SplitSeq(tres, ",") {
			what, number, _ := strings.Cut(item, "=")
			kind, _, isTyped := strings.Cut(what, ":")
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
				return 0, false
			case kind != "gres/gpu":
				shared = shared || n > 0
			case isTyped:
				typed += n
			default:
				all = n
			}
		}
		if all == 0 {
			all = typed
		}
		return int(all), shared
	}
	return 0, false
}

// Usage is what a step used of its GPUs; -1 = not recorded.
type Usage struct{ UtilPercent, MemMiB float64 }

// maxUsage is the most that is taken for a figure: where Slurm could not get one it
// prints a number near 2^64.
const maxUsage = 1e7

// Usage reads a TRESUsage column.
func (r *SacctRow) Usage(col string) Usage {
	u := Usage{-1, -1}
	for item := range strings.SplitSeq(r.Text(col), ",") {
		what, value, _ := strings.Cut(item, "=")
		switch what {
		case "gres/gpuutil":
			v, err := strconv.ParseFloat(value, 64)
			if err != nil || math.IsNaN(v) || v < 0 {
				r.Fail(col, fmt.Errorf("%.60q: %w", item, table.ErrNotNumber))
			} else if v <= maxUsage {
				u.UtilPercent = v
			}
		case "gres/gpumem":
			v, ok := ParseBytes(value)
			if !ok {
				r.Fail(col, fmt.Errorf("%.60q: %w", item, table.ErrNotNumber))
			} else if v/(1<<20) <= maxUsage {
				u.MemMiB = v / (1 << 20)
			}
		}
	}
	return u
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

// Time reads a time, at loc where it has no zone. The zero time is one that has not
// come, or is not known.
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
