package experiment

import (
	"image/color"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// The colours that Okabe and Ito chose to be told apart by everybody (Color
// Universal Design, 2008), without their yellow for thin lines.
var (
	orange     = color.RGBA{230, 159, 0, 255}
	sky        = color.RGBA{86, 180, 233, 255}
	green      = color.RGBA{0, 158, 115, 255}
	blue       = color.RGBA{0, 114, 178, 255}
	vermillion = color.RGBA{213, 94, 0, 255}

	ink   = color.RGBA{32, 32, 32, 255}
	grey  = color.RGBA{150, 150, 150, 255}
	light = color.RGBA{205, 205, 205, 255}
	faint = color.RGBA{228, 228, 228, 255}
)

// policyColour is a policy's colour in all figures; white where it isn't known.
func policyColour(name string) color.Color {
	if s, ok := rlcore.PolicyNamed(name); ok {
		return s.Colour
	}
	if name == Clairvoyant {
		return ink
	}
	return color.White
}
