package text

import (
	"bytes"
	"io"
)

// MostOfField bounds the bytes read of a job's field. Users write any length, and squeue prints it for each array task.
const MostOfField = 16 << 10

// tooLong marks a field that was cut off. No text of a user contains a zero byte.
var tooLong = []byte("\x00too long")

// Bounded copies squeue's output to w, with each field, which ends with mark, cut off at MostOfField bytes.
type Bounded struct {
	w    io.Writer
	mark []byte
	in   int    // bytes of the current field so far
	rest []byte // may be the beginning of a mark
}

// NewBounded returns a Bounded for fields that end with mark.
func NewBounded(w io.Writer, mark string) *Bounded { return &Bounded{w: w, mark: []byte(mark)} }

// Write implements io.Writer. It holds back bytes that may begin a mark, until the next call or Close.
func (b *Bounded) Write(p []byte) (int, error) {
	text := p
	if len(b.rest) > 0 {
		text = append(b.rest, p...)
		b.rest = nil
	}
	for {
		i := bytes.Index(text, b.mark)
		if i < 0 {
			break
		}
		if err := b.field(text[:i]); err != nil {
			return 0, err
		}
		if _, err := b.w.Write(b.mark); err != nil {
			return 0, err
		}
		b.in = 0
		text = text[i+len(b.mark):]
	}
	keep := min(len(b.mark)-1, len(text))
	if err := b.field(text[:len(text)-keep]); err != nil {
		return 0, err
	}
	b.rest = bytes.Clone(text[len(text)-keep:])
	return len(p), nil
}

// Close writes the bytes held back. It doesn't close w.
func (b *Bounded) Close() error {
	rest := b.rest
	b.rest = nil
	return b.field(rest)
}

// field writes a piece of the current field, up to the bound.
func (b *Bounded) field(piece []byte) error {
	before := b.in
	b.in += len(piece)
	if len(piece) == 0 || before > MostOfField {
		return nil
	}
	if _, err := b.w.Write(piece[:min(len(piece), MostOfField-before)]); err != nil {
		return err
	}
	if b.in > MostOfField {
		_, err := b.w.Write(tooLong)
		return err
	}
	return nil
}

// isTooLong reports whether a field was cut off.
func isTooLong(field []byte) bool { return bytes.HasSuffix(field, tooLong) }
