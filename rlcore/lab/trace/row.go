package trace

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

// Bounds beyond which a value is taken for a mistake, not for a measurement.
const (
	minDurationS = 0.01 // shorter than a process takes to start
	maxDurationS = 1e9  // some 30 years
	maxSubmitS   = 1e11 // seconds since 1970 in the year 5138
	maxName      = 256  // bytes
	maxGPUs      = 1e6
)

// row is one row of any of the formats. Its getters give zero values from the
// first value on that can't be used; err is that value's Error.
type row struct {
	file string
	head []string       // the columns' names as the file writes them
	at   map[string]int // field of a column, by its name in lower case
	rec  []string
	line func(field int) int
	err  error
}

// fail keeps the first thing that is wrong with the row.
func (r *row) fail(col string, err error) {
	if r.err != nil {
		return
	}
	i, ok := r.at[col]
	if ok {
		col = r.head[i]
	}
	r.err = &Error{File: r.file, Line: r.line(i), Column: col, Err: err}
}

// text returns the column's field without space around it; "" where the file has
// no such column.
func (r *row) text(col string) string {
	if i, ok := r.at[col]; ok && i < len(r.rec) {
		return strings.TrimSpace(r.rec[i])
	}
	return ""
}

// name returns a name, which must be there and be fit to print.
func (r *row) name(col string) string {
	s := r.text(col)
	if s == "" {
		r.fail(col, ErrMissing)
	}
	return r.checked(col, s)
}

// nameOr is name for a column that may be empty.
func (r *row) nameOr(col, unknown string) string {
	if s := r.text(col); s != "" {
		return r.checked(col, s)
	}
	return unknown
}

func (r *row) checked(col, s string) string {
	odd := func(c rune) bool { return !unicode.IsPrint(c) }
	switch {
	case len(s) > maxName:
		r.fail(col, fmt.Errorf("%w: a name of %d bytes, at most %d", ErrOutOfRange, len(s), maxName))
	case !utf8.ValidString(s) || strings.ContainsFunc(s, odd):
		r.fail(col, fmt.Errorf("%.40q has characters that can't be printed", s))
	}
	return s
}

// number returns a finite number of lo..hi, which must be there.
func (r *row) number(col string, lo, hi float64) float64 {
	if r.text(col) == "" {
		r.fail(col, ErrMissing)
		return 0
	}
	return r.numberOr(col, lo, hi, 0)
}

// numberOr is number for a column that may be empty.
func (r *row) numberOr(col string, lo, hi, unknown float64) float64 {
	s := r.text(col)
	if s == "" {
		return unknown
	}
	v, err := parseNumber(s)
	if err != nil {
		r.fail(col, err)
		return 0
	}
	if v < lo || v > hi {
		r.fail(col, fmt.Errorf("%w: %.40s is not from %g to %g", ErrOutOfRange, s, lo, hi))
		return 0
	}
	return v
}

func parseNumber(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (math.IsNaN(v) || math.IsInf(v, 0)):
		return 0, fmt.Errorf("%w: %.40q is not a finite number", ErrOutOfRange, s)
	case err != nil:
		return 0, fmt.Errorf("%.40q %w", s, ErrNotNumber)
	}
	return v, nil
}

// app is name for an application that must be one of known, if any are.
func (r *row) app(col string, known []string) string {
	s := r.name(col)
	r.mustKnow(col, s, known)
	return s
}

func (r *row) mustKnow(col, app string, known []string) {
	if r.err != nil || len(known) == 0 || slices.Contains(known, app) {
		return
	}
	const most = 20
	names := slices.Sorted(slices.Values(known))
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	r.fail(col, fmt.Errorf("%w %q; there are %s%s", ErrUnknownApp, app, strings.Join(names, ", "), more))
}
