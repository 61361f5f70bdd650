package figure

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// CM is a centimetre of paper.
const CM = vg.Centimeter

// Formats are the file formats, which are also the endings of files.
var Formats = []string{"png", "svg"}

// dpi of PNGs.
const dpi = 144

// Sheet is a picture: charts in rows and columns with aligned axes, a title above, and the first
// chart's legend next to them.
type Sheet struct {
	Title string
	Rows  [][]*Chart // of equal length
	W, H  vg.Length
}

// Single is a sheet of one chart, with the chart's title.
func Single(c *Chart, w, h vg.Length) *Sheet {
	s := &Sheet{Title: c.Title.Text, Rows: [][]*Chart{{c}}, W: w, H: h}
	c.Title.Text = ""
	return s
}

// FormatOf returns the format that a file's ending names.
func FormatOf(path string) (string, error) {
	ext := strings.ToLower(filepath.Ext(path))
	if f := strings.TrimPrefix(ext, "."); slices.Contains(Formats, f) {
		return f, nil
	}
	return "", fmt.Errorf("%s: a picture ends in .png or .svg, not %.20q", path, ext)
}

// Write draws the sheet to a file, in the format of its ending. An error leaves the file as
// it was.
func (s *Sheet) Write(path string) error {
	format, err := FormatOf(path)
	if err != nil {
		return err
	}
	data, err := s.render(format)
	if err != nil {
		return fmt.Errorf("draw %s: %w", filepath.Base(path), err)
	}
	if err := renameio.WriteFile(path, data, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// edge is the room around what is on a sheet, points.
const edge = 8

func (s *Sheet) render(format string) ([]byte, error) {
	var canvas vg.CanvasWriterTo
	if format == "png" {
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(s.W, s.H), vgimg.UseDPI(dpi))}
	} else {
		canvas = vgsvg.New(s.W, s.H)
	}
	plots := make([][]*plot.Plot, len(s.Rows))
	var errs []error
	for i, row := range s.Rows {
		for _, c := range row {
			plots[i] = append(plots[i], c.Plot)
			errs = append(errs, c.err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Path())
	c = s.legend(s.title(draw.Crop(c, edge, -2*edge, edge, -edge)))
	tiles := draw.Tiles{Rows: len(plots), Cols: len(plots[0]), PadX: 3 * edge, PadY: edge}
	at := plot.Align(plots, tiles, c)
	for i, row := range plots {
		for k, p := range row {
			p.Draw(at[i][k])
		}
	}
	var b bytes.Buffer
	_, err := canvas.WriteTo(&b)
	return b.Bytes(), err
}

// title writes the title and returns what is left of the canvas.
func (s *Sheet) title(c draw.Canvas) draw.Canvas {
	if s.Title == "" {
		return c
	}
	st := letters(12)
	st.YAlign = text.YTop
	c.FillText(st, vg.Point{X: c.Min.X, Y: c.Max.Y}, s.Title)
	return draw.Crop(c, 0, 0, 0, -st.Height(s.Title)-edge)
}

// legend draws the legend and returns what is left of the canvas.
func (s *Sheet) legend(c draw.Canvas) draw.Canvas {
	first := s.Rows[0][0]
	if !first.keyed {
		return c
	}
	key := first.key
	key.Top, key.Left = true, true
	key.TextStyle, key.Padding = letters(9), vg.Points(3)
	box := key.Rectangle(c)
	width := box.Max.X - box.Min.X + 2*edge
	key.Draw(draw.Crop(c, c.Max.X-c.Min.X-width+edge, 0, 0, 0))
	return draw.Crop(c, 0, -width-edge, 0, 0)
}
