package table

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the longest line that is read, bytes. No row of numbers and names comes
// near it; a file that isn't text is refused before it fills the memory.
const MaxLine = 1 << 20

// ReadCSV calls do for each row of a CSV file and stops at the first error. need are the columns that must be there.
func ReadCSV(r io.Reader, name string, need []string, do func(*Row)) error {
	cr := csv.NewReader(&bounded{r: withoutBOM(r), line: 1})
	cr.ReuseRecord = true
	cr.Comment = '#'
	rec, err := cr.Read()
	if errors.Is(err, io.EOF) {
		return &Error{File: name, Err: ErrEmpty}
	}
	if err != nil {
		return csvError(name, 1, 0, err)
	}
	line := func(field int) int { line, _ := cr.FieldPos(field); return line }
	t, err := NewRow(name, line(0), rec)
	if err != nil {
		return err
	}
	for _, col := range need {
		t.FirstOf(",", col)
	}
	if t.err != nil {
		return t.err
	}
	t.line = line
	last := t.line(0)
	for n := 0; ; n++ {
		t.rec, err = cr.Read()
		if errors.Is(err, io.EOF) && n == 0 {
			return &Error{File: name, Err: ErrNoRows}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return csvError(name, last+1, len(t.head), err)
		}
		last = t.line(0)
		if do(t); t.err != nil {
			return t.err
		}
	}
}

// csvError places what encoding/csv found; line is where reading stopped if it doesn't say.
func csvError(name string, line, columns int, err error) error {
	var here *Error
	if errors.As(err, &here) {
		return &Error{File: name, Line: here.Line, Err: here.Err}
	}
	var syntax *csv.ParseError
	if !errors.As(err, &syntax) {
		return &Error{File: name, Line: line, Err: fmt.Errorf("read: %w", err)}
	}
	if errors.Is(err, csv.ErrFieldCount) {
		return &Error{File: name, Line: syntax.Line, Err: fmt.Errorf("the row doesn't have the header's %d columns", columns)}
	}
	return &Error{File: name, Line: syntax.Line, Err: fmt.Errorf("at byte %d: %w", syntax.Column, syntax.Err)}
}

func withoutBOM(r io.Reader) io.Reader {
	br := bufio.NewReader(r)
	const bom = "\ufeff"
	if b, _ := br.Peek(len(bom)); string(b) == bom {
		_, _ = br.Discard(len(bom)) // they have been peeked at
	}
	return br
}

// bounded refuses lines of more than MaxLine bytes: encoding/csv takes any.
type bounded struct {
	r    io.Reader
	line int // the one being read, from 1
	n    int // its bytes so far
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	rest := p[:n]
	for {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		if b.n+i > MaxLine {
			return 0, b.long()
		}
		b.line, b.n, rest = b.line+1, 0, rest[i+1:]
	}
	if b.n += len(rest); b.n > MaxLine {
		return 0, b.long()
	}
	return n, err
}

func (b *bounded) long() error {
	return &Error{Line: b.line, Err: fmt.Errorf("%w: more than %d bytes", ErrLongLine, MaxLine)}
}
