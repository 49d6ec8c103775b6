package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"skerry.dev/skerry"
)

// printJSON writes v as indented JSON.
func (c *cli) printJSON(v any) error {
	enc := json.NewEncoder(c.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printTable writes rows below a header.
func (c *cli) printTable(header string, rows [][]string) error {
	w := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, header)
	for _, row := range rows {
		for i := range row {
			row[i] = oneLine(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// print writes items as a table or as JSON: an array, or the item alone when
// one was asked for.
func print[T any](c *cli, single bool, items []T, header string, row func(T) []string) error {
	if c.tables() {
		rows := make([][]string, 0, len(items))
		for _, item := range items {
			rows = append(rows, row(item))
		}
		return c.printTable(header, rows)
	}
	if single && len(items) == 1 {
		return c.printJSON(items[0])
	}
	if items == nil {
		items = []T{}
	}
	return c.printJSON(items)
}

const sandboxHeader = "ID\tNAME\tSTATUS\tPERSISTENT\tIMAGE\tCPU\tMEMORY\tDISK\tTIMEOUT\tIDLE TIMEOUT\tAGE"

func sandboxRow(sb skerry.Sandbox) []string {
	status, persistent := withReason(string(sb.Status), sb.Reason), "no"
	if sb.Operation != "" {
		status = fmt.Sprintf("%s (%s)", status, sb.Operation)
	}
	if sb.Persistent {
		persistent = "yes"
	}
	return []string{string(sb.ID), sb.Name, status, persistent, sb.Image, fmt.Sprint(sb.Resources.CPU),
		formatMiB(sb.Resources.MemoryMiB), formatMiB(sb.Resources.DiskMiB), formatTimeout(sb.Lifecycle), formatIdleTimeout(sb.Lifecycle), formatAge(time.Since(sb.CreatedAt))}
}

// withReason puts the beginning of a reason beside a status; the whole is in the
// JSON output.
func withReason(status, reason string) string {
	const room = 48
	if reason == "" {
		return status
	}
	if r := []rune(reason); len(r) > room {
		reason = string(r[:room]) + "…"
	}
	return status + ": " + reason
}

const imageHeader = "ID\tNAME\tSTATUS\tPLATFORM\tSIZE\tLAYERS\tDEFAULT\tEXPIRES"

func imageRow(img skerry.Image) []string {
	status, isDefault, size, expires := withReason(string(img.Status), img.Error), "", "-", "-"
	if img.Status == skerry.ImageReady {
		size = formatBytes(img.Bytes)
	}
	if img.Default {
		isDefault = "yes"
	}
	if img.ExpiresAt != nil {
		expires = "in " + formatAge(max(0, time.Until(*img.ExpiresAt)))
	}
	return []string{string(img.ID), imageName(img), status, img.Platform, size, fmt.Sprint(img.LayerCount), isDefault, expires}
}

func imageName(img skerry.Image) string {
	if img.Anonymous {
		return "(anonymous)"
	}
	return img.Name
}

const pushHeader = "ID\tNAME\tREFERENCE\tSTATUS\tSIZE\tDIGEST"

func pushRow(img skerry.Image) []string {
	p := cmp.Or(img.Push, &skerry.PushProgress{})
	return []string{string(img.ID), imageName(img), p.Reference, withReason(string(p.Status), p.Error), formatBytes(p.TotalBytes), p.Digest}
}

const runnerHeader = "ID\tHOST\tARCH\tONLINE\tACCELERATOR\tMACHINES\tCPUS\tMEMORY\tDISK FREE"

func runnerRow(r skerry.Runner) []string {
	return []string{string(r.ID), r.Hostname, r.Arch, fmt.Sprint(r.Online), r.Accel, fmt.Sprint(r.Machines),
		fmt.Sprint(r.CPUs), formatMiB(r.MemoryMiB), formatMiB(r.DiskFreeMiB)}
}

// formatAge writes a duration with its largest unit only.
func formatAge(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
