package text

import (
	"bytes"
	"io"
)

// MostOfField is how many bytes of a field of a job are read. Users write what they like
// (--exclude=n1,n1,…), and squeue prints it for each task of an array.
const MostOfField = 16 << 10

// tooLong ends what was read of a longer field. No text of a user's holds a zero byte.
var tooLong = []byte("\x00too long")

// Bounded writes to w what squeue prints, and of each field, which mark ends, the first
// MostOfField bytes only, with a note that there is more.
type Bounded struct {
	w    io.Writer
	mark []byte
	in   int // bytes of the present field
	rest []byte
}

// NewBounded returns one for fields that end with mark.
func NewBounded(w io.Writer, mark string) *Bounded { return &Bounded{w: w, mark: []byte(mark)} }

// Write implements io.Writer. What might be the beginning of a mark is kept for the next call, or Close.
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
		b.in, text = 0, text[i+len(b.mark):]
	}
	keep := min(len(b.mark)-1, len(text))
	if err := b.field(text[:len(text)-keep]); err != nil {
		return 0, err
	}
	b.rest = bytes.Clone(text[len(text)-keep:])
	return len(p), nil
}

// Close writes what was kept. It doesn't close w.
func (b *Bounded) Close() error {
	rest := b.rest
	b.rest = nil
	return b.field(rest)
}

// field writes a piece of the present field, up to the bound.
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

// isTooLong reports whether a field was longer than what is there of it.
func isTooLong(field []byte) bool { return bytes.HasSuffix(field, tooLong) }
