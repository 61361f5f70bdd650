package experiment

import "image/color"

// The colours that Okabe and Ito chose to be told apart by everybody (Color
// Universal Design, 2008), without their yellow for thin lines.
var (
	orange     = color.RGBA{230, 159, 0, 255}
	sky        = color.RGBA{86, 180, 233, 255}
	green      = color.RGBA{0, 158, 115, 255}
	yellow     = color.RGBA{240, 228, 66, 255}
	blue       = color.RGBA{0, 114, 178, 255}
	vermillion = color.RGBA{213, 94, 0, 255}
	purple     = color.RGBA{204, 121, 167, 255}

	ink   = color.RGBA{32, 32, 32, 255}
	grey  = color.RGBA{150, 150, 150, 255}
	light = color.RGBA{205, 205, 205, 255}
	faint = color.RGBA{228, 228, 228, 255}
)

// policyColour is a policy's colour in all figures.
func policyColour(name string) color.Color {
	switch name {
	case "fifo":
		return light
	case "sjf":
		return grey
	case "tetris":
		return sky
	case "deeprm_max":
		return orange
	case "deeprm_mean":
		return purple
	case "dqngpu":
		return green
	case "random":
		return yellow
	case "greedy":
		return blue
	case "dqn_flat":
		return color.RGBA{136, 34, 85, 255} // Tol's wine: Okabe and Ito have no ninth
	case "dqn":
		return vermillion
	case Clairvoyant:
		return ink
	}
	return color.White
}
