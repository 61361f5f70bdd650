package doctor

import (
	"fmt"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Text renders the findings for people.
func Text(findings []Finding) string {
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
			job.Count(count[Error], "error"), job.Count(count[Warning], "warning"))
	case count[Warning] > 0:
		fmt.Fprintf(&b, "%s. slurmbridge works, but not as well as it could.\n", job.Count(count[Warning], "warning"))
	default:
		b.WriteString("Nothing is missing.\n")
	}
	return b.String()
}

func sentence(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}
