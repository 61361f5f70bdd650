package config

import (
	"fmt"
	"strings"
	"time"
)

const wrapAt = 88

// Sample is a complete configuration file: every setting with its meaning and
// its default.
func Sample() []byte {
	var b strings.Builder
	b.WriteString("# slurmbridge's settings, each with its default. A line that is left out, or a file\n" +
		"# that is, means the default. SLURMBRIDGE_LEASE=90s in the environment overrules the\n" +
		"# lease here, and --lease overrules both. `systemctl reload slurmbridge` reads it anew.\n")
	c := Default()
	for i := range keys {
		k := &keys[i]
		b.WriteString("\n")
		comment(&b, k.doc)
		fmt.Fprintf(&b, "%s: %s\n", k.name, yaml(k.field(c)))
	}
	b.WriteString("\n")
	comment(&b, "The cards of gres.conf (Type=) that slurmbridge does not know, or knows wrongly. "+
		"mem_mib is nvidia-smi's memory.total; pcie_mbps counts both directions (0 = not known); max_clients is "+
		"MPS's limit (0 = none); memory_limits: MPS holds jobs to a part of the memory (Volta and later, unless "+
		"memory_limit is off in node.yaml); same_user keeps other users' jobs off a card in use: MPS serves one user at a time "+
		"unless its daemon runs with -multiuser-server; sharing is how jobs slow each other where nothing was learned: "+
		"mps, or time-slice where they share without MPS and take turns. For example:")
	b.WriteString("#   mycard: {mem_mib: 24576, same_user: true, max_clients: 48, pcie_mbps: 64000}\n")
	names := make([]string, len(cards))
	for i := range cards {
		names[i] = cards[i].name
	}
	comment(&b, "Known are "+strings.Join(names, ", ")+".")
	fmt.Fprintf(&b, "%s: {}\n", gpuTypesKey)
	return []byte(b.String())
}

// comment writes text as lines of a comment.
func comment(b *strings.Builder, text string) {
	line := "#"
	for _, w := range strings.Fields(text) {
		if len(line)+1+len(w) > wrapAt {
			b.WriteString(line + "\n")
			line = "#"
		}
		line += " " + w
	}
	b.WriteString(line + "\n")
}

// yaml prints a setting's value as a file has it.
func yaml(p any) string {
	switch p := p.(type) {
	case *string:
		if *p == "" || strings.HasPrefix(*p, ":") {
			return fmt.Sprintf("%q", *p)
		}
		return *p
	case *[]string:
		return "[" + strings.Join(*p, ", ") + "]"
	case *time.Duration:
		return text(*p)
	case *bool:
		return fmt.Sprint(*p)
	case *int:
		return fmt.Sprint(*p)
	case *float64:
		return fmt.Sprint(*p)
	}
	return ""
}
