// Package table reads rows of named columns from text: CSV (ReadCSV), and lines that another
// package splits (EachLine, Row). A value that is missing where it is needed, or can't be true,
// refuses the whole file: every error is an *Error that names file, line and column.
//
// CSV files have a header line and commas. Columns stand in any order; unknown columns are ignored,
// missing ones that are needed are an error. A line that starts with # is a comment. A byte order
// mark, CRLF and quoted fields are all right.
package table

import (
	"errors"
	"fmt"
	"strings"
)

// Error names the value of a file that can't be used, and why.
type Error struct {
	File   string
	Line   int    // from 1; 0 = the file as a whole
	Column string // "" = the row as a whole
	Err    error
}

// Error is e.g. `pairs.csv:7: slowdown: "abc" is not a number`.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Column != "" {
		b.WriteString(": ")
		b.WriteString(e.Column)
	}
	return b.String() + ": " + e.Err.Error()
}

// Unwrap returns what is wrong with the value.
func (e *Error) Unwrap() error { return e.Err }

// The errors that an Error wraps if callers distinguish them.
var (
	ErrEmpty      = errors.New("the file is empty")
	ErrNoRows     = errors.New("there is no row in it")
	ErrNoColumn   = errors.New("the header lacks this column")
	ErrNotNumber  = errors.New("is not a number")
	ErrMissing    = errors.New("the value is missing")
	ErrTwice      = errors.New("stands there twice")
	ErrUnknownApp = errors.New("unknown application")
	ErrLongLine   = errors.New("the line is too long")
	ErrOutOfRange = errors.New("out of range")
)
