package figure

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot/plotter"
)

// A chart that can't be drawn is the sheet's error, and leaves no file.
func TestSheetReportsWhatCannotBeDrawn(t *testing.T) {
	c := New("title", "x", "y")
	c.Line(plotter.XYs{{X: 0, Y: math.NaN()}}, Ink, 1).Width = 2
	c.Texts(plotter.XYs{{X: math.Inf(1), Y: 0}}, []string{"x"}).Offset.Y = 1
	path := filepath.Join(t.TempDir(), "a.svg")
	if err := Single(c, 5*CM, 5*CM).Write(path); err == nil || !strings.Contains(err.Error(), "a.svg") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is there: %v", err)
	}
}

func TestFormatIsTheFilesEnding(t *testing.T) {
	for path, want := range map[string]string{"a.png": "png", "dir.svg/b.SVG": "svg", "c.pdf": "", "d": ""} {
		if got, err := FormatOf(path); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}
