package main

import (
	"errors"
	"fmt"
	"image/color"

	"github.com/spf13/cobra"
	"gonum.org/v1/plot/plotter"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
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
				v, err := cli.FindProfile(c.Context(), st, who, args[0], "")
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
	c.Flags().StringVar(&who, "user", "", "user of the profile (default: the site's)")
	c.Flags().StringVarP(&file, "output", "o", "", "FILE.png or FILE.svg")
	return c
}

// plotProfile draws the four resources over time.
func plotProfile(p *rlcore.Profile, path string) error {
	if _, err := figure.FormatOf(path); err != nil {
		return cli.Usage(err)
	}
	s := &figure.Sheet{Title: fmt.Sprintf("%s: %.1f s ± %.1f", p.App, p.DurationS, p.DurationSD), W: 20 * figure.CM, H: 18 * figure.CM}
	for _, r := range cli.Resources(p) {
		c := figure.New("", "", r.Name+", "+r.Unit)
		line := c.Line(figure.Steps(p, r.Of), figure.Blue, 1.2)
		line.StepStyle, line.FillColor = plotter.PostStep, color.NRGBA{figure.Blue.R, figure.Blue.G, figure.Blue.B, 60}
		c.X.Min, c.X.Max, c.Y.Min, c.Y.Max = 0, p.DurationS, 0, max(r.Top*1.05, 1e-9)
		s.Rows = append(s.Rows, []*figure.Chart{c})
	}
	s.Rows[len(s.Rows)-1][0].X.Label.Text = "time alone, s"
	return s.Write(path)
}
