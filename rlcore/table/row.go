package table

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the longest name that is taken, bytes.
const maxName = 256

// Row is one row of a table. Its getters give zero values from the first value on that
// can't be used; Err is that value's Error. Columns are named in lower case.
type Row struct {
	file string
	head []string       // the columns' names as the file writes them
	at   map[string]int // field of a column, by its name in lower case
	rec  []string
	line func(field int) int
	err  error
}

// NewRow returns a row with the columns of a header on this line.
func NewRow(file string, line int, header []string) (*Row, error) {
	r := &Row{file: file, head: make([]string, len(header)), at: make(map[string]int, len(header))}
	r.Set(line, nil)
	for i, s := range header {
		r.head[i] = strings.TrimSpace(s)
		key := strings.ToLower(r.head[i])
		if key == "" {
			continue
		}
		if _, ok := r.at[key]; ok {
			return nil, &Error{File: file, Line: line, Err: fmt.Errorf("column %.40q %w", r.head[i], ErrTwice)}
		}
		r.at[key] = i
	}
	return r, nil
}

// Set makes the row the one on a line, with these fields.
func (r *Row) Set(line int, fields []string) {
	r.rec, r.line = fields, func(int) int { return line }
}

// Err is what is wrong with the row, an *Error; nil = nothing.
func (r *Row) Err() error { return r.err }

// Width is the number of columns.
func (r *Row) Width() int { return len(r.head) }

// Has reports whether the file has a column.
func (r *Row) Has(col string) bool {
	_, ok := r.at[col]
	return ok
}

// Index is the place of a column's field.
func (r *Row) Index(col string) int { return r.at[col] }

// FirstOf returns the first of the columns that the file has; one must be there. comma
// separates the columns of the file.
func (r *Row) FirstOf(comma string, columns ...string) string {
	for _, col := range columns {
		if r.Has(strings.ToLower(col)) {
			return strings.ToLower(col)
		}
	}
	if r.err == nil {
		r.err = &Error{
			File: r.file, Line: r.line(0), Column: strings.Join(columns, " or "),
			Err: fmt.Errorf("%w; it has %.200s", ErrNoColumn, strings.Join(r.head, comma)),
		}
	}
	return ""
}

// Fail notes what is wrong with a column; the first counts.
func (r *Row) Fail(col string, err error) {
	if r.err != nil {
		return
	}
	i, ok := r.at[col]
	if ok {
		col = r.head[i]
	}
	r.err = &Error{File: r.file, Line: r.line(i), Column: col, Err: err}
}

// Text returns the column's field without space around it; "" where the file has no such column.
func (r *Row) Text(col string) string {
	if i, ok := r.at[col]; ok && i < len(r.rec) {
		return strings.TrimSpace(r.rec[i])
	}
	return ""
}

// Name returns a name, which must be there and be fit to print.
func (r *Row) Name(col string) string {
	s := r.Text(col)
	if s == "" {
		r.Fail(col, ErrMissing)
	}
	return r.checked(col, s)
}

// NameOr is name for a column that may be empty.
func (r *Row) NameOr(col, unknown string) string {
	if s := r.Text(col); s != "" {
		return r.checked(col, s)
	}
	return unknown
}

func (r *Row) checked(col, s string) string {
	odd := func(c rune) bool { return !unicode.IsPrint(c) }
	switch {
	case len(s) > maxName:
		r.Fail(col, fmt.Errorf("%w: a name of %d bytes, at most %d", ErrOutOfRange, len(s), maxName))
	case !utf8.ValidString(s) || strings.ContainsFunc(s, odd):
		r.Fail(col, fmt.Errorf("%.40q has characters that can't be printed", s))
	}
	return s
}

// Number returns a finite number of lo..hi, which must be there.
func (r *Row) Number(col string, lo, hi float64) float64 {
	if r.Text(col) == "" {
		r.Fail(col, ErrMissing)
		return 0
	}
	return r.NumberOr(col, lo, hi, 0)
}

// NumberOr is number for a column that may be empty.
func (r *Row) NumberOr(col string, lo, hi, unknown float64) float64 {
	s := r.Text(col)
	if s == "" {
		return unknown
	}
	v, err := ParseNumber(s)
	if err != nil {
		r.Fail(col, err)
		return 0
	}
	if v < lo || v > hi {
		r.Fail(col, fmt.Errorf("%w: %.40s is not from %g to %g", ErrOutOfRange, s, lo, hi))
		return 0
	}
	return v
}

// ParseNumber reads a finite number.
func ParseNumber(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (math.IsNaN(v) || math.IsInf(v, 0)):
		return 0, fmt.Errorf("%w: %.40q is not a finite number", ErrOutOfRange, s)
	case err != nil:
		return 0, fmt.Errorf("%.40q %w", s, ErrNotNumber)
	}
	return v, nil
}

// OneOf is name for an application that must be one of known, if any are.
func (r *Row) OneOf(col string, known []string) string {
	app := r.Name(col)
	if r.err != nil || len(known) == 0 || slices.Contains(known, app) {
		return app
	}
	const most = 20
	names := slices.Sorted(slices.Values(known))
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	r.Fail(col, fmt.Errorf("%w %q; there are %s%s", ErrUnknownApp, app, strings.Join(names, ", "), more))
	return app
}
