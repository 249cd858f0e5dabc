"""Pure data: what was asked, decided, held and observed. Nothing here touches the machine."""
