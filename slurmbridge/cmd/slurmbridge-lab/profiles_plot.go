package main

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
)

func newProfilesPlot(s *shared) *cobra.Command {
	var who, file string
	c := &cobra.Command{
		Use: "plot APP -o FILE.png|FILE.svg", Short: "One profile as a picture", Args: cobra.ExactArgs(1),
		Long:    "plot draws the four resources of show over time as PNG or SVG, as the file's ending says.",
		Example: "  slurmbridge profiles plot vgg16 -o vgg16.svg",
		RunE: func(c *cobra.Command, args []string) error {
			if file == "" {
				return cli.Usage(errors.New("name the picture: -o FILE.png or -o FILE.svg"))
			}
			return s.WithStore(c, func(st *store.Store) error {
				v, err := cli.FindProfile(c.Context(), st, who, args[0])
				if err != nil {
					return err
				}
				if err := plotProfile(v.Profile, file); err != nil {
					return err
				}
				if s.JSON {
					return s.PrintJSON(map[string]string{"app": v.Profile.App, "file": file})
				}
				fmt.Fprintf(s.Out, "%s drawn in %s\n", v.Profile.App, file)
				return nil
			})
		},
	}
	c.Flags().StringVar(&who, "user", "", "whose profile (default: everybody's)")
	c.Flags().StringVarP(&file, "output", "o", "", "FILE.png or FILE.svg")
	return c
}

// plotProfile writes the four cli.Resources over time to a PNG or an SVG.
func plotProfile(p *rlcore.Profile, path string) error {
	body, err := pictureOf(p, strings.ToLower(filepath.Ext(path)))
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(path, body, 0o644); err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// pictureOf returns the picture as a file's contents; ending is .png or .svg.
func pictureOf(p *rlcore.Profile, ending string) ([]byte, error) {
	const w, h = 8 * vg.Inch, 7 * vg.Inch
	var canvas vg.CanvasWriterTo
	switch ending {
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(144))}
	case ".svg":
		canvas = vgsvg.New(w, h)
	default:
		return nil, cli.Usage(fmt.Errorf("a picture is FILE.png or FILE.svg, not %.20q", ending))
	}
	var plots [][]*plot.Plot
	for _, r := range cli.Resources(p) {
		pl, err := plotOf(p, r)
		if err != nil {
			return nil, fmt.Errorf("draw %s: %w", r.Name, err)
		}
		plots = append(plots, []*plot.Plot{pl})
	}
	plots[0][0].Title.Text = fmt.Sprintf("%s: %.1f s ± %.1f", p.App, p.DurationS, p.DurationSD)
	plots[len(plots)-1][0].X.Label.Text = "time alone, s"
	c := draw.New(canvas)
	c.SetColor(color.White)
	c.Fill(c.Path())
	const edge = 10
	c = draw.Crop(c, edge, -edge, edge, -edge)
	for i, row := range plot.Align(plots, draw.Tiles{Rows: len(plots), Cols: 1, PadY: edge}, c) {
		plots[i][0].Draw(row[0])
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("draw picture: %w", err)
	}
	return out.Bytes(), nil
}

// plotOf draws one resource as steps.
func plotOf(p *rlcore.Profile, r cli.Resource) (*plot.Plot, error) {
	pl := plot.New()
	pl.X.Min, pl.X.Max, pl.Y.Min, pl.Y.Max = 0, p.DurationS, 0, max(r.Top*1.05, 1e-9)
	pl.Y.Label.Text = r.Name + ", " + r.Unit
	var points plotter.XYs
	for i, u := range p.Series {
		from, to := float64(i)*p.PeriodS, float64(i+1)*p.PeriodS
		if from >= p.DurationS && i > 0 {
			break
		}
		if i == len(p.Series)-1 {
			to = p.DurationS
		}
		v := r.Of(u)
		points = append(points, plotter.XY{X: from, Y: v}, plotter.XY{X: min(to, p.DurationS), Y: v})
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.Color, line.Width = color.RGBA{R: 31, G: 119, B: 180, A: 255}, vg.Points(1.2)
	line.FillColor = color.NRGBA{R: 31, G: 119, B: 180, A: 60}
	pl.Add(plotter.NewGrid(), line)
	return pl, nil
}
