package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/google/renameio/v2"
)

// target follows links to the file to write. Special: what is there must not be
// replaced by a file, being a device, a pipe or a folder.
func target(path string) (file string, special bool) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	st, err := os.Stat(path)
	return path, err == nil && !st.Mode().IsRegular()
}

// writable checks before long work that its result can be written. "" and "-" are no files.
func writable(file string) error {
	if file == "" || file == "-" {
		return nil
	}
	path, special := target(file)
	if special {
		f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the user names it
		if err != nil && !errors.Is(err, syscall.ENXIO) {              // a pipe without a reader
			return fmt.Errorf("can't write %s: %w", file, cause(err))
		}
		if err == nil {
			_ = f.Close() // nothing was written
		}
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".slurmbridge-*")
	if err != nil {
		return fmt.Errorf("can't write %s: %w", file, cause(err))
	}
	_ = f.Close() // nothing was written
	return os.Remove(f.Name())
}

// cause is err without a file's name, which the message has.
func cause(err error) error {
	var where *os.PathError
	if errors.As(err, &where) {
		return where.Err
	}
	return err
}

// writeJSON writes v to a file, to standard output for "-", nowhere for "".
// Devices and pipes are written to, not replaced.
func (s *shared) writeJSON(file string, v any) error {
	switch file {
	case "":
		return nil
	case "-":
		return s.PrintJSON(v)
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	text = append(text, '\n')
	if path, special := target(file); special {
		err = os.WriteFile(path, text, 0o644) //nolint:gosec // the user names it; it is there already
	} else {
		err = renameio.WriteFile(path, text, 0o644, renameio.IgnoreUmask())
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, cause(err))
	}
	return nil
}

// column is a column of a table with one value per row.
type column[T any] struct {
	name string
	of   func(T) any
}

// head appends the columns' names.
func head[T any](columns []column[T], before ...any) []any {
	for _, c := range columns {
		before = append(before, c.name)
	}
	return before
}

// row appends what columns show of a value.
func row[T any](columns []column[T], v T, before ...any) []any {
	for _, c := range columns {
		before = append(before, c.of(v))
	}
	return before
}

// fixed is a figure with so many decimals.
func fixed(decimals int, v float64) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

// percent is e.g. "85 %", and never "-0 %".
func percent(part float64) string { return fmt.Sprintf("%.0f %%", math.Round(100*part)+0) }

// tenths is e.g. "0.4 %".
func tenths(part float64) string { return fmt.Sprintf("%.1f %%", 100*part) }

func average(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}
