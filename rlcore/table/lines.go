package table

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Skipped counts the rows that are sound but no use to a replay, by the reason.
type Skipped map[string]int

// String is e.g. "3 without a run time, 1 still running".
func (s Skipped) String() string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, fmt.Sprintf("%d %s", s[why], why))
	}
	return strings.Join(parts, ", ")
}

// EachLine calls do for every line of text, numbered from 1, without its line end, and stops at the first error.
func EachLine(r io.Reader, name string, do func(line int, text string) error) error {
	sc := bufio.NewScanner(withoutBOM(r))
	sc.Buffer(nil, MaxLine)
	line := 0
	for sc.Scan() {
		line++
		if err := do(line, sc.Text()); err != nil {
			return err
		}
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return &Error{File: name, Line: line + 1, Err: fmt.Errorf("%w: more than %d bytes", ErrLongLine, MaxLine)}
	case err != nil:
		return &Error{File: name, Line: line + 1, Err: fmt.Errorf("read: %w", err)}
	case line == 0:
		return &Error{File: name, Err: ErrEmpty}
	}
	return nil
}

// Nothing is the error of a file that had rows and none that is of use.
func Nothing(name string, skipped Skipped) error {
	if len(skipped) == 0 {
		return &Error{File: name, Err: ErrNoRows}
	}
	return &Error{File: name, Err: fmt.Errorf("%w that can be used: %s", ErrNoRows, skipped)}
}
