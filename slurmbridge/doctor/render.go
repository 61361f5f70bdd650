package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// WriteText prints the findings for people.
func WriteText(w io.Writer, findings []Finding) error {
	var b strings.Builder
	count := map[Severity]int{}
	for i := range findings {
		f := &findings[i]
		count[f.Severity]++
		fmt.Fprintf(&b, "%-8s %s\n%9s%s\n", f.Severity, f.What, "", sentence(f.Why))
		if f.Cost != "" {
			fmt.Fprintf(&b, "%9sCosts: %s\n", "", sentence(f.Cost))
		}
		for _, fix := range f.Fix {
			switch {
			case fix.File == "":
				fmt.Fprintf(&b, "%9srun:\n", "")
			case fix.File == settingsFile:
				fmt.Fprintf(&b, "%9sin %s, in place of the line that is there:\n", "", fix.File)
			case strings.Contains(fix.File, " "):
				fmt.Fprintf(&b, "%9swith %s:\n", "", fix.File)
			default:
				fmt.Fprintf(&b, "%9sin %s:\n", "", fix.File)
			}
			for _, l := range fix.Lines {
				fmt.Fprintf(&b, "%13s%s\n", "", l)
			}
		}
		b.WriteString("\n")
	}
	switch {
	case count[Error] > 0:
		fmt.Fprintf(&b, "%s, %s. slurmbridge can't do its work until the errors are gone.\n",
			plural(count[Error], "error"), plural(count[Warning], "warning"))
	case count[Warning] > 0:
		fmt.Fprintf(&b, "%s. slurmbridge works, and would work better without.\n", plural(count[Warning], "warning"))
	default:
		b.WriteString("Nothing is missing.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON prints the findings for programs: {"findings": […], "exit": N}.
func WriteJSON(w io.Writer, findings []Finding) error {
	if findings == nil {
		findings = []Finding{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(struct {
		Findings []Finding `json:"findings"`
		Exit     int       `json:"exit"`
	}{findings, Exit(findings)})
}

func sentence(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
